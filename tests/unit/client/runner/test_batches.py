"""Samples become batches, and what can't is told."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from paramfleet.data.reading.files import CannotReadFileError
from paramfleet.runner.batches import SampleError, list_files, pipe_command, stack
from paramfleet.runner.config.configuration import Config, read_config
from paramfleet.runner.config.errors import ConfigError, ModelFolderError
from paramfleet.runner.config.settings import HyperParameters
from paramfleet.runner.folders import import_module, load_model_class, load_reader


def config(folder: Path, **keys: Any) -> Config[HyperParameters]:
    path = folder / "config.yaml"
    path.write_text("", encoding="utf-8")
    read = read_config(path).read_as(HyperParameters)
    return replace(read, runner=replace(read.runner, **keys))


def test_fields_become_tensors_of_one_row_a_sample() -> None:
    one = (1, np.array([3, 4]), [0.5, 1.5])
    two = (np.array([0]), np.array([5, 6], np.int32), np.array([2.5, 3.5], np.float64))

    label, ids, dense = stack([(*one,), (int(two[0][0]), *two[1:])])

    assert torch.equal(label, torch.tensor([[1], [0]]))
    assert torch.equal(ids, torch.tensor([[3, 4], [5, 6]]))
    assert torch.equal(dense, torch.tensor([[0.5, 1.5], [2.5, 3.5]]))


@pytest.mark.parametrize(
    ("samples", "rule"),
    [
        ([(1, 2), (1,)], "fields"),
        ([([1, 2],), ([1],)], "width"),
        ([("a",), ("b",)], "numbers"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(samples: Any, rule: str) -> None:
    with pytest.raises(SampleError, match=rule):
        stack(samples)


def test_the_files_of_a_folder_come_by_name(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()

    files = list_files(config(tmp_path, train_data_dir="."), "train_data_dir")

    assert files == [str(tmp_path / name) for name in ("a", "b", "config.yaml")]
    assert list_files(config(tmp_path, train_data_dir="b"), "train_data_dir") == [
        str(tmp_path / "b")
    ]


@pytest.mark.parametrize("named", ["memory://shop/days", "/shop/days"])
def test_the_files_of_a_remote_folder_come_by_name(tmp_path: Path, named: str) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("b.gz", "a", ".hidden", "folder/c"):
        memory.pipe(f"/shop/days/{name}", b"1 1\n")
    keys = {"fs_name": "" if "://" in named else "memory://"}

    files = list_files(config(tmp_path, train_data_dir=named, **keys), "train_data_dir")

    assert files == ["memory:///shop/days/a", "memory:///shop/days/b.gz"]
    one = config(tmp_path, train_data_dir=f"{named}/a", **keys)
    assert list_files(one, "train_data_dir") == ["memory:///shop/days/a"]


def test_a_remote_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = config(tmp_path, train_data_dir="memory://none/days")

    with pytest.raises(CannotReadFileError, match="memory://none/days"):
        list_files(made, "train_data_dir")


def test_a_remote_folder_without_files_is_named(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/hollow/days/folder/c", b"1 1\n")
    made = config(tmp_path, train_data_dir="memory://hollow/days")

    with pytest.raises(ConfigError, match=r"runner\.train_data_dir.*has no files"):
        list_files(made, "train_data_dir")


@pytest.mark.parametrize(
    ("name", "rule"),
    [("", "must be given"), ("none", "there is no file"), ("empty", "has no files")],
)
def test_without_files_the_key_is_named(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match=rf"runner\.train_data_dir.*{rule}"):
        list_files(config(tmp_path, train_data_dir=name), "train_data_dir")


def test_a_script_in_a_pipe_gets_the_yaml_and_the_helpers(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()

    command = pipe_command(config(folder, pipe_command="python reader.py"))

    assert command.startswith(f"cd {shlex.quote(str(folder))} && ")
    *_, yaml, helpers = shlex.split(command)
    assert yaml == str(folder / "config.yaml")
    assert (Path(helpers) / "common.py").is_file()
    assert pipe_command(config(folder)) == "cat"
    assert pipe_command(config(folder, pipe_command="zcat")).endswith("&& zcat")


def test_two_folders_may_have_modules_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "net.py").write_text(f"NAME = {name!r}\n")
        (folder / "model.py").write_text("from .net import NAME\n")

    names = [import_module(tmp_path / name / "model").NAME for name in ("one", "two")]

    assert names == ["one", "two"]


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    raw = read_config(config(tmp_path).path)

    with pytest.raises(ModelFolderError, match=r"model\.py: there is no such module"):
        load_model_class(raw)


@pytest.mark.parametrize("line", ["import paddle", "from paddle.io import IterableDataset"])
def test_a_module_for_paddle_is_told_as_such(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # benchmarks/paddle.py is no Paddle, but tests of the benchmarks have it on the path.
    kept = [folder for folder in sys.path if not Path(folder, "paddle.py").exists()]
    monkeypatch.setattr(sys, "path", kept)
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    (tmp_path / "criteo_reader.py").write_text(f"{line}\n")

    with pytest.raises(ModelFolderError, match=r"criteo_reader\.py: it imports paddle"):
        import_module(tmp_path / "criteo_reader")


def test_another_library_that_is_missing_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text("import paddlex\n")

    with pytest.raises(ModuleNotFoundError, match="paddlex"):
        import_module(tmp_path / "reader")


def test_a_module_without_its_class_is_named(tmp_path: Path) -> None:
    made = config(tmp_path)
    for name in ("model", "reader"):
        (tmp_path / f"{name}.py").write_text("Model = RecDataset = 3\n")

    with pytest.raises(ModelFolderError, match=r"model\.py: must define a class Model"):
        load_model_class(read_config(made.path))
    with pytest.raises(ModelFolderError, match=r"reader\.py: must define a class RecDataset"):
        load_reader(made, "reader")


def test_a_script_that_a_pipe_names_from_another_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dnn"
    folder.mkdir()
    (folder / "reader.py").touch()
    (tmp_path / "tools.py").touch()
    monkeypatch.chdir(tmp_path)

    def script(name: str) -> str:
        made = pipe_command(config(folder, pipe_command=f"python {name}"))
        return shlex.split(made)[-3]

    assert script("reader.py") == "reader.py"
    assert script("models/rank/dnn/reader.py") == "reader.py"
    assert script("tools.py") == str(tmp_path / "tools.py")
    assert script("models/none.py") == "models/none.py"
