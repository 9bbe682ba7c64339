"""What a PaddleRec user has for rank/dnn trains: configurations, a pipe reader, the sample.

Of the configurations only the paths of model and reader are ours.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from paramfleet_shared.settings.config import read_environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DNN = Path(__file__).parents[3] / "models" / "rank" / "dnn"
SCRIPT = "model_folder.py"
MODES = ["sync", "async", "geo"]

CONFIG = """\
# workspace
#workspace: "models/rank/dnn"


runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "{dnn}/reader" # importlib format
  model_path: "{dnn}/model"
  use_gpu: False
  use_auc: True
  train_batch_size: 2
  epochs: 3
  print_interval: 2
  model_save_path: "output_model_dnn"
  infer_batch_size: 2
  infer_reader_path: "{dnn}/reader" # importlib format
  test_data_dir: "data/sample_data/train"
  infer_load_path: "output_model_dnn"
  infer_start_epoch: 0
  infer_end_epoch: 3
  num_workers: 0
  #use inference save model
  # model_init_path: "output_model_dnn/2" # init model
  use_inference: False
  save_inference_feed_varnames: ["1","2","3","4","5","6","7","8","9","10","11","12","13","14",\
"15","16","17","18","19","20","21","22","23","24","25","26","dense_input"]
  save_inference_fetch_varnames: ["sigmoid_0.tmp_0"]

  # distribute_config
  sync_mode: "async"
  split_file_list: False
  thread_num: 1


# hyper parameters of user-defined network
hyper_parameters:
  # optimizer config
  optimizer:
    class: Adam
    learning_rate: 0.001
    strategy: async
  # user-defined <key, value> pairs
  sparse_inputs_slots: 27
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
  dense_input_dim: 13
  fc_sizes: [512, 256, 128, 32]
  distributed_embedding: 0
"""
"""``config.yaml``."""

BENCHMARK = """\
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.0001
    adam_lazy_mode: True
  sparse_inputs_slots: 27
  sparse_feature_number: 1000001
  sparse_feature_dim: 10
  dense_input_dim: 13
  fc_sizes: [400, 400, 400]

runner:
  epochs: 15
  print_interval: 100

  geo_step: 400
  sync_mode: "async"  # sync / async /geo / heter
  thread_num: 16
  use_gpu: 0

  model_path: "{dnn}/model.py"
  reader_type: "QueueDataset"  # DataLoader / QueueDataset / RecDataset
  pipe_command: "python benchmark_reader.py"
  dataset_debug: False
  split_file_list: False

  train_batch_size: 1000
  train_data_dir: "data/sample_data/train"
  train_reader_path: "benchmark_reader"
  model_save_path: "model"

  infer_batch_size: 1000
  test_data_dir: "data/sample_data/train"
  infer_reader_path: "benchmark_reader"
  infer_load_path: "model"
  infer_start_epoch: 0
  infer_end_epoch: 1
"""
"""``benchmark.yaml``, reading the sample."""

GPUBOX = """\
runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "criteo_reader" # importlib format
  model_path: "{dnn}/model"
  use_gpu: True
  use_auc: True
  train_batch_size: 2
  epochs: 3
  print_interval: 10
  model_save_path: "output_model_dnn_queue"

  sync_mode: "gpubox"
  thread_num: 12
  reader_type: "InmemoryDataset"  # DataLoader / QueueDataset / RecDataset / InmemoryDataset
  pipe_command: "python models/rank/dnn/queuedataset_reader.py"
  dataset_debug: False
  split_file_list: False

  infer_batch_size: 2
  infer_reader_path: "criteo_reader" # importlib format
  test_data_dir: "data/sample_data/train"
  infer_load_path: "output_model_dnn_queue"
  infer_start_epoch: 0
  infer_end_epoch: 3
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.001
    strategy: async
  sparse_inputs_slots: 27
  sparse_feature_number: 1024
  sparse_feature_dim: 11
  dense_input_dim: 13
  fc_sizes: [512, 256, 128, 32]
  distributed_embedding: 0
"""
"""``config_gpubox.yaml``; the model's path is ours."""

READER = """\
import sys
import yaml
import os
import paddle.distributed.fleet as fleet
import logging

logging.basicConfig(format='%(message)s', level=logging.INFO)
logger = logging.getLogger(__name__)


class Reader(fleet.MultiSlotDataGenerator):
    def init(self, config):
        slots = int(config.get("hyper_parameters.sparse_inputs_slots"))
        self.names = ["click"] + [str(slot) for slot in range(1, slots)] + ["dense_feature"]
        logger.info("pipe init success")

    def generate_sample(self, line):
        def reader():
            found = {name: [] for name in self.names}
            for word in line.strip().split(" "):
                name, value = word.split(":")
                found[name].append(float(value) if name == "dense_feature" else int(value))
            yield [(name, found[name] or [0]) for name in self.names]

        return reader


if __name__ == "__main__":
    yaml_path = sys.argv[1]
    utils_path = sys.argv[2]
    sys.path.append(utils_path)
    import common_ps
    yaml_helper = common_ps.YamlHelper()
    config = yaml_helper.load_yaml(yaml_path)

    r = Reader()
    r.init(config)
    r.run_from_stdin()
"""
"""As PaddleRec's own: it imports Paddle, and helpers from the folder that it is given."""


DATASET = """\
from __future__ import print_function
import numpy as np
import paddle
from paddle.io import IterableDataset


class RecDataset(IterableDataset):
    def __init__(self, file_list, config):
        super(RecDataset, self).__init__()
        self.file_list = file_list
        if config.get("runner.use_fleet", False):
            rank, workers = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
            self.file_list = file_list[rank::workers]

    def __iter__(self):
        for file in self.file_list:
            with open(file, "r") as rf:
                for l in rf:
                    label, *ids = l.split()
                    output_list = [np.array([int(label)]).astype("int64")]
                    output_list += [np.array([int(i)]).astype("int64") for i in ids]
                    output_list.append(np.ones(13).astype("float32"))
                    yield output_list
"""
"""As PaddleRec's ``criteo_reader.py``: where ``use_fleet`` is true, it shares the files."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sample of 80 lines, a reader and both configurations."""
    data_dir = read_environment().get("PARAMFLEET_DATA")
    if not data_dir:
        pytest.skip("PARAMFLEET_DATA names no folder of real data")
    made = tmp_path_factory.mktemp("paddlerec")
    train = made / "data" / "sample_data" / "train"
    train.mkdir(parents=True)
    sample = Path(data_dir) / "tiny" / "paddlerec_dnn_slot_80.txt"
    (train / "sample_train.txt").write_bytes(sample.read_bytes())
    (made / "benchmark_reader.py").write_text(READER)
    for name, text in (("config", CONFIG), ("benchmark", BENCHMARK)):
        (made / f"{name}.yaml").write_text(text.replace("{dnn}", str(DNN)))
    return made


def result_of(log: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.splitlines()[-1])
    return found


def test_its_configuration_trains_in_every_mode(jobs: Any, folder: Path) -> None:
    words = ["train", "-m", str(folder / "config.yaml")]

    running = {
        mode: jobs.start(
            SCRIPT,
            *words,
            f"-orunner.sync_mode={mode}",
            f"-orunner.model_save_path=output_{mode}",
            servers=1,
        )
        for mode in MODES
    }
    ended = {mode: job.end() for mode, job in running.items()}

    for mode, end in ended.items():
        assert set(end.codes.values()) == {0}, end.story()
        result = result_of(end.logs["worker0"])
        assert (result["mode"], result["workers"], result["epochs"]) == (mode, 2, 3)
        assert result["auc"] > 0.9, (mode, result)
        assert sorted(p.name for p in (folder / f"output_{mode}").iterdir()) == ["0", "1", "2"]


def test_its_pipe_reader_is_read_and_its_epochs_are_scored(jobs: Any, folder: Path) -> None:
    words = ["-m", str(folder / "benchmark.yaml")]

    trained = jobs.local(SCRIPT, "train", *words)
    scored = jobs.local(SCRIPT, "infer", *words, "-orunner.infer_start_epoch=14",
                        "-orunner.infer_end_epoch=15")  # fmt: skip

    assert trained["epochs"] == 15
    assert trained["auc"] > 0.6, "15 steps of all 80 samples"
    assert scored["auc"] == pytest.approx(trained["auc"], abs=1e-6)


def test_its_dataset_shares_the_files_among_the_workers(jobs: Any, tmp_path: Path) -> None:
    rows, epochs = 200, 4
    (tmp_path / "data").mkdir()
    for file in range(2):
        lines = (f"{n % 2} {' '.join(str(n % 2 + 2 * slot) for slot in range(26))}"
                 for n in range(rows))  # fmt: skip
        (tmp_path / "data" / f"part-{file}").write_text("\n".join(lines) + "\n")
    (tmp_path / "criteo_reader.py").write_text(DATASET)
    text = CONFIG.replace('"{dnn}/reader"', '"criteo_reader"').replace("{dnn}", str(DNN))
    (tmp_path / "config.yaml").write_text(text)
    keys = {"train_data_dir": "data", "test_data_dir": "data", "train_batch_size": 20,
            "use_fleet": True, "epochs": epochs, "model_save_path": ""}  # fmt: skip
    words = [f"-orunner.{key}={value}" for key, value in keys.items()]

    ended = jobs.run(SCRIPT, "train", "-m", str(tmp_path / "config.yaml"), *words, servers=1)

    assert set(ended.codes.values()) == {0}, ended.story()
    result = result_of(ended.logs["worker0"])
    assert result["examples_per_s"] * result["seconds"] == pytest.approx(
        2 * rows * epochs, rel=0.01
    )
    assert result["auc"] > 0.9, "on all test files"


@pytest.fixture
def gpubox(tmp_path: Path) -> Path:
    """Return a folder with PaddleRec's file for gpubox, and data that can be learned."""
    train = tmp_path / "data" / "sample_data" / "train"
    train.mkdir(parents=True)
    for file in range(2):
        lines = [
            f"click:{n % 2} "
            + " ".join(f"dense_feature:{(n + d) % 7 / 7}" for d in range(13))
            + "".join(
                f" {slot}:{100 * slot + (n + slot * (n // 2)) % 10}" for slot in range(1, 27)
            )
            for n in range(file, 80, 2)
        ]
        (train / f"part-{file}").write_text("\n".join(lines) + "\n")
    (tmp_path / "queuedataset_reader.py").write_text(READER)
    (tmp_path / "config_gpubox.yaml").write_text(GPUBOX.replace("{dnn}", str(DNN)))
    return tmp_path


def numbers_in(folder: Path) -> dict[str, Any]:
    """Return all numbers of a checkpoint, rows in order of their ids."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        order = np.argsort(tensors["ids"]) if "ids" in tensors else slice(None)
        found[path.name] = {name: tensor[order].tobytes() for name, tensor in tensors.items()}
    return found


def test_its_file_for_gpubox_trains_passes_and_goes_on_between_two(
    jobs: Any, gpubox: Path
) -> None:
    words = ["train", "-m", str(gpubox / "config_gpubox.yaml"), "-orunner.thread_num=1"]
    split = [*words, "-orunner.device_budget=20000"]
    timed = "-orunner.checkpoint_configs={every_s: 0.001, keep: 100, dirname: timed}"
    one = {"workers": 1, "servers": 2}

    ended = [
        job.end()
        for job in (
            jobs.start(SCRIPT, *words, **one),
            jobs.start(SCRIPT, *split, timed, "-orunner.model_save_path=split", **one),
        )
    ]

    for end in ended:
        assert set(end.codes.values()) == {0}, end.story()
        log = end.logs["worker0"]
        result = result_of(log)
        assert (result["mode"], result["epochs"]) == ("gpubox", 3)
        assert result["auc"] > 0.8
        assert "worker.checkpoint_failed" not in log
        assert log.count("worker.no_cuda_device") == (0 if torch.cuda.is_available() else 1)
    for epoch in "012":
        whole = numbers_in(gpubox / "output_model_dnn_queue" / epoch)
        assert len(whole) > 1
        assert numbers_in(gpubox / "split" / epoch) == whole
    steps = {int(p.name.rpartition("-")[2]): p for p in (gpubox / "timed").glob("0*")}
    (*_, inside) = (step for step in sorted(steps) if 80 < step < 120)

    again = jobs.run(
        SCRIPT, *split, "-orunner.model_save_path=again", "-orunner.last_epoch=1",
        f"-orunner.model_init_path={steps[inside]}", **one,
    )  # fmt: skip

    assert set(again.codes.values()) == {0}, again.story()
    assert "position_not_taken" not in again.logs["worker0"]
    assert numbers_in(gpubox / "again" / "2") == numbers_in(gpubox / "split" / "2")
