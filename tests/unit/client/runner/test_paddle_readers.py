"""Readers of PaddleRec's that derive from ``paddle.io.IterableDataset`` run as they are."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.runner.batches import open_batches
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.errors import ModelFolderError
from paramfleet.runner.folders import import_module, load_model_class, load_reader

MODEL = """\
import torch
from paramfleet import runner


class Model(runner.Model[runner.HyperParameters]):
    def create_model(self): return torch.nn.Linear(1, 1)
    def create_feeds(self, batch): return runner.Feeds(tuple(batch[1:]), batch[0])
    def create_loss(self, outputs, labels): return outputs.mean()
    def create_metrics(self): return {}
    def update_metrics(self, metrics, outputs, labels): pass
"""
READER = """\
from __future__ import print_function
import numpy as np
import paddle
from paddle.io import IterableDataset


class RecDataset(IterableDataset):
    def __init__(self, file_list, config):
        super(RecDataset, self).__init__()
        self.file_list = file_list
        if config:
            use_fleet = config.get("runner.use_fleet", False)
            self.inference = config.get("runner.inference", False)
        else:
            use_fleet = False
        if use_fleet:
            worker_id = paddle.distributed.get_rank()
            worker_num = paddle.distributed.get_world_size()
            blocksize = int(len(file_list) / worker_num)
            self.file_list = file_list[worker_id * blocksize:(worker_id + 1) * blocksize]

    def __iter__(self):
        for file in self.file_list:
            with open(file, "r") as rf:
                for l in rf:
                    label, *ids = l.split()
                    output_list = [np.array([int(label)]).astype("int64")]
                    output_list += [np.array([int(i)]).astype("int64") for i in ids]
                    yield output_list[1:] if self.inference else output_list
"""
"""As PaddleRec's ``criteo_reader.py``."""

MAP_STYLE = """\
from paddle.io import Dataset


class RecDataset(Dataset):
    def __init__(self, file_list, config):
        super().__init__()
        self.rows = []
        for file in file_list:
            with open(file) as lines:
                self.rows += [[int(word) for word in line.split()] for line in lines]

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return len(self.rows)
"""
Keys = dict[str, object]


@pytest.fixture(autouse=True)
def _no_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    # benchmarks/paddle.py is no Paddle, but tests of the benchmarks have it on the path.
    kept = [folder for folder in sys.path if not Path(folder, "paddle.py").exists()]
    monkeypatch.setattr(sys, "path", kept)
    monkeypatch.delitem(sys.modules, "paddle", raising=False)


def folder_with(tmp_path: Path, reader: str, **keys: object) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "reader.py").write_text(reader)
    (tmp_path / "part-0").write_text("1 7 8\n0 9 6\n")
    (tmp_path / "part-1").write_text("1 5 4\n")
    lines = "".join(f"  {key}: {value}\n" for key, value in keys.items())
    (tmp_path / "config.yaml").write_text(f"runner:\n  train_batch_size: 2\n{lines}")
    return tmp_path


def batches_of(folder: Path, *, test: bool = False) -> list[list[Any]]:
    raw = read_config(folder / "config.yaml")
    cls = load_model_class(raw)
    files = [str(folder / "part-0"), str(folder / "part-1")]
    batches = open_batches(cls(raw.read_as(cls.parameters)), files, test=test)
    return [[field.tolist() for field in batch] for batch in batches]


ALL = [[[[1], [0]], [[7], [9]], [[8], [6]]], [[[1]], [[5]], [[4]]]]


@pytest.mark.parametrize("kind", ["RecDataset", "DataLoader"])
def test_an_iterable_dataset_of_paddles_is_read(tmp_path: Path, kind: str) -> None:
    assert batches_of(folder_with(tmp_path, READER, reader_type=kind)) == ALL


def test_processes_of_a_loader_read_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, READER, reader_type="DataLoader", num_workers=2)

    assert sorted(map(str, batches_of(folder))) == sorted(map(str, ALL))


def test_a_dataset_with_an_index_is_read_in_order(tmp_path: Path) -> None:
    assert batches_of(folder_with(tmp_path, MAP_STYLE)) == [
        [[[1], [0]], [[7], [9]], [[8], [6]]],
        [[[1]], [[5]], [[4]]],
    ]


def test_an_iterable_dataset_of_torchs_is_read(tmp_path: Path) -> None:
    text = READER.replace("import paddle\n", "").replace("paddle.io", "torch.utils.data")

    assert batches_of(folder_with(tmp_path, text)) == ALL


@pytest.fixture
def _second_of_two() -> Iterator[None]:
    """Be the second of two workers, without a job."""
    fleet.init(RoleMaker(distributed=False, index=1, worker_num=2))
    yield
    fleet.init(RoleMaker(distributed=False))


@pytest.mark.usefixtures("_second_of_two")
def test_a_reader_that_shares_files_has_the_rank_of_its_worker(tmp_path: Path) -> None:
    assert batches_of(folder_with(tmp_path, READER, use_fleet=True)) == ALL[1:]


@pytest.mark.usefixtures("_second_of_two")
@pytest.mark.parametrize("keys", [{}, {"use_fleet": False}])
def test_it_reads_all_files_where_it_is_not_asked_to_share(tmp_path: Path, keys: Keys) -> None:
    assert batches_of(folder_with(tmp_path, READER, **keys)) == ALL


@pytest.mark.usefixtures("_second_of_two")
@pytest.mark.parametrize("key", ["split_file_list", "split_batches"])
def test_what_the_runner_shares_the_reader_does_not_share_again(
    tmp_path: Path, key: str
) -> None:
    folder = folder_with(tmp_path, READER, use_fleet=True, **{key: True})

    assert batches_of(folder) == ALL


@pytest.mark.usefixtures("_second_of_two")
def test_every_worker_reads_all_test_files_since_they_share_the_batches(
    tmp_path: Path,
) -> None:
    assert batches_of(folder_with(tmp_path, READER, use_fleet=True), test=True) == ALL


def test_the_names_are_gone_when_the_reader_is_imported(tmp_path: Path) -> None:
    path = sys.path[:]
    folder = folder_with(tmp_path, READER)
    (folder / "net.py").write_text("import paddle\n")

    batches_of(folder)

    assert sys.path == path
    assert not [name for name in sys.modules if name.partition(".")[0] == "paddle"]
    with pytest.raises(ModelFolderError, match=r"net\.py: it imports paddle"):
        import_module(folder / "net")


@pytest.mark.parametrize(
    "line", ["from paddle.vision import ops", "import paddle\npaddle.to_tensor([1])"]
)
def test_what_a_reader_needs_of_the_real_paddle_is_named(tmp_path: Path, line: str) -> None:
    folder = folder_with(tmp_path, f"{line}\n")
    config = read_config(folder / "config.yaml")
    cls = load_model_class(config)

    with pytest.raises(ModelFolderError, match=r"reader\.py: .*paddle\.(vision|to_tensor)"):
        load_reader(config.read_as(cls.parameters), "reader")


def test_a_paddle_that_is_installed_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site" / "paddle"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("")
    (site / "io.py").write_text("torch_free = True\nclass IterableDataset: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folder = folder_with(tmp_path, READER + "\nimport paddle.io\nIS = paddle.io.torch_free\n")

    assert batches_of(folder) == ALL
    assert sys.modules["paddle"].__file__ == str(site / "__init__.py")
    for name in ("paddle", "paddle.io"):
        monkeypatch.delitem(sys.modules, name)


def test_a_sample_of_tensors_is_a_sample(tmp_path: Path) -> None:
    text = "import torch\nclass RecDataset:\n    def __init__(self, files, config): pass\n"
    text += "    def __iter__(self): yield [torch.tensor([1]), torch.tensor([0.5])]\n"

    assert batches_of(folder_with(tmp_path, text)) == [[[[1]], [[0.5]]]]
    assert torch.tensor([1]).dtype == torch.int64
