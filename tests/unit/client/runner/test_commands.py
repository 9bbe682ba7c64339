"""``train`` and ``infer`` in this process, on a folder as small as one can be."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.config.strategy import StrategyError
from paramfleet.runner import Config, HyperParameters
from paramfleet.runner.__main__ import main
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.config.settings import OptimizerSettings, RunnerSettings
from paramfleet.runner.folders import load_model_class
from paramfleet.runner.learning import strategy_of
from paramfleet.runner.models.optimizers import make_optimizer, make_scheduler
from paramfleet.runner.training import Trainer
from paramfleet.tables.rules import server_rule
from paramfleet.telemetry.visual import visual
from paramfleet_shared.system.processes.keeping import tied

MODEL = """\
import torch
import paramfleet as fleet
from paramfleet import runner


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = fleet.nn.EmbeddingBag(0, 1, mode="sum", initializer=fleet.nn.constant(0))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return self.ids(ids).squeeze(1) + self.bias


class Model(runner.Model[runner.HyperParameters]):
    def create_model(self):
        return Net()

    def create_feeds(self, batch):
        label, ids = batch
        return runner.Feeds((ids,), label.squeeze(1).float())

    def create_loss(self, outputs, labels):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)

    def create_metrics(self):
        return {"auc": runner.Auc(), "mean": runner.Mean()}

    def update_metrics(self, metrics, outputs, labels):
        metrics["auc"].update(outputs.sigmoid(), labels)
        metrics["mean"].update(outputs.sigmoid())
"""
READER = """\
class RecDataset:
    def __init__(self, files, config):
        self.files = files

    def __iter__(self):
        for name in self.files:
            with open(name) as lines:
                for line in lines:
                    label, *ids = map(int, line.split())
                    yield label, ids
"""
CONFIG = """\
runner:
  train_data_dir: data
  test_data_dir: data
  train_batch_size: 4
  epochs: 3
  print_interval: 2
  model_save_path: saved
hyper_parameters:
  optimizer:
    class: SGD
    learning_rate: 0.5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "toys" / "parity"
    (made / "data").mkdir(parents=True)
    lines = [f"{number % 2} {number % 2} {10 + number}\n" for number in range(30)]
    (made / "data" / "rows").write_text("".join(lines))
    for name, text in (("model", MODEL), ("reader", READER)):
        (made / f"{name}.py").write_text(text)
    (made / "config.yaml").write_text(CONFIG)
    return made


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(folder: Path, command: str, *options: str) -> Result:
    return CliRunner().invoke(main, [command, "-m", str(folder / "config.yaml"), *options])


def test_training_ends_with_its_result(folder: Path) -> None:
    done = run(folder, "train")

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    job = ["model", "mode", "workers", "servers", "epochs"]
    assert list(result) == [*job, "auc", "mean", "scored_on", "examples_per_s", "seconds"]
    assert (result["mode"], result["workers"], result["servers"]) == ("local", 1, 0)
    assert result["scored_on"] == "test"
    assert result["examples_per_s"] == pytest.approx(90 / result["seconds"], rel=0.05)
    assert (result["model"], result["epochs"], result["auc"]) == ("toys/parity", 3, 1.0)
    assert "epoch 2, step 8: loss" in done.stderr
    assert f"checkpoint saved: {folder}/saved/2" in done.stderr.splitlines()
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["0", "1", "2"]


def test_behind_the_first_epoch_the_job_knows_how_many_steps_there_will_be(
    folder: Path,
) -> None:
    done = run(folder, "train", "-o", "runner.epochs=2", "-o", "runner.print_interval=1")

    assert done.exit_code == 0, done.output
    facts = session.progress.facts()
    assert (facts["step"], facts["total_steps"]) == (16, 16)


def test_saved_epochs_are_scored_one_by_one(folder: Path) -> None:
    trained = json.loads(run(folder, "train").stdout.splitlines()[-1])

    done = run(folder, "infer", "-o", "runner.infer_start_epoch=1")

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["mode"], result["epochs"]) == ("infer", 2)
    assert result["mean"] == pytest.approx(trained["mean"], abs=1e-6)
    assert done.stderr.count("epoch ") == 2


def test_an_epoch_that_was_not_saved_is_named_before_any_is_scored(folder: Path) -> None:
    run(folder, "train", "-o", "runner.epochs=2", "runner.use_inference=true")

    done = run(folder, "infer")

    assert done.exit_code != 0
    assert "runner.infer_end_epoch" in done.output
    assert "no checkpoint of epoch 2" in done.output
    assert "it has: 0, 1" in done.output
    assert "epoch 0" not in done.stderr.replace("checkpoint of epoch", "")


@pytest.mark.slow
def test_a_table_that_a_scored_checkpoint_lacks_is_shown_with_its_name(folder: Path) -> None:
    run(folder, "train", "-o", "runner.epochs=1")
    path = folder / "saved" / "0" / "manifest.json"
    manifest = json.loads(path.read_text())
    for part in ("tables", "files"):
        manifest[part] = [each for each in manifest[part] if each["kind"] == "dense"]
    path.write_text(json.dumps(manifest))
    command = [sys.executable, "-m", "paramfleet.runner", "infer"]
    options = ["-m", str(folder / "config.yaml"), "-o", "runner.epochs=1"]

    done = subprocess.run(
        tied([*command, *options]), capture_output=True, text=True, check=True
    )

    assert "worker.tables_not_in_checkpoint" in done.stderr
    assert "missing=['ids']" in done.stderr


@pytest.mark.parametrize("decay", [[], ["hyper_parameters.optimizer.decay_steps=4"]])
def test_training_goes_on_behind_an_epoch(folder: Path, decay: list[str]) -> None:
    how = ["-o", *decay] if decay else []
    whole = json.loads(run(folder, "train", *how).stdout.splitlines()[-1])

    more = ["runner.model_init_path=saved/0", "runner.last_epoch=0"]
    rest = run(folder, "train", "-o", *decay, *more)

    assert json.loads(rest.stdout.splitlines()[-1])["mean"] == pytest.approx(
        whole["mean"], abs=1e-6
    )


def slotted(folder: Path) -> None:
    """Let the folder's data be text by slots."""
    lines = [f"1 {number % 2} 2 {number % 2} {10 + number}\n" for number in range(30)]
    (folder / "data" / "rows").write_text("".join(lines))
    slots = """
    def create_slots(self):
        return [fleet.data.Slot("label"), fleet.data.Slot("ids", width=2)]

    def create_model"""
    (folder / "model.py").write_text(MODEL.replace("\n    def create_model", slots))


BY_STEP = "runner.checkpoint_configs={every_s: 0.000001, keep: 100}"


@pytest.mark.parametrize(
    "kind", ["RecDataset", "DataLoader", "QueueDataset", "InmemoryDataset"]
)
@pytest.mark.parametrize("step", [2, 8, 11, 16, 23])
def test_training_goes_on_inside_an_epoch(folder: Path, kind: str, step: int) -> None:
    if kind in {"QueueDataset", "InmemoryDataset"}:
        slotted(folder)
    how = ["-o", f"runner.reader_type={kind}", "runner.print_interval=1"]
    whole = run(folder, "train", *how, BY_STEP)
    assert whole.exit_code == 0, whole.output
    (saved,) = (folder / "checkpoints").glob(f"*-step-{step}")
    epoch = (step - 1) // 8

    more = [f"runner.model_init_path={saved}", f"runner.last_epoch={epoch - 1}"]
    rest = run(folder, "train", *how, *more)

    assert rest.exit_code == 0, rest.output
    lines = [each.partition(": ")[0] for each in rest.stderr.splitlines() if "loss" in each]
    assert len(lines) == 24 - step
    if lines:
        assert lines[0] == f"epoch {step // 8}, step {step % 8 + 1}"
    results = [json.loads(each.stdout.splitlines()[-1]) for each in (whole, rest)]
    assert results[1]["mean"] == pytest.approx(results[0]["mean"], abs=1e-6)


def test_a_position_in_other_data_is_left_out_by_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(folder, "train", "-o", "runner.epochs=1", BY_STEP)
    (saved,) = (folder / "checkpoints").glob("*-step-3")
    (folder / "data" / "rows").rename(folder / "data" / "others")

    done = run(folder, "train", "-o", f"runner.model_init_path={saved}", "runner.epochs=1")

    assert "epoch 0, step 8: loss" in done.stderr
    (record,) = [r for r in caplog.records if r.getMessage() == "worker.position_not_taken"]
    assert "other files" in vars(record)["reason"]


def test_a_position_in_another_epoch_is_left_out_by_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(folder, "train", "-o", "runner.epochs=2", BY_STEP)
    (saved,) = (folder / "checkpoints").glob("*-step-11")

    done = run(folder, "train", "-o", f"runner.model_init_path={saved}", "runner.epochs=2")

    assert "epoch 0, step 2: loss" in done.stderr
    assert "epoch 1, step 2: loss" in done.stderr
    (record,) = [r for r in caplog.records if r.getMessage() == "worker.position_not_taken"]
    assert "of epoch 1, and the next one is 0" in vars(record)["reason"]


def test_inference_files_are_saved_beside_a_checkpoint(folder: Path) -> None:
    done = run(folder, "train", "-o", "runner.use_inference=true", "runner.epochs=1")

    assert done.exit_code == 0, done.output
    assert (folder / "saved" / "0.inference" / "model.pt").is_file()


@pytest.mark.parametrize(
    ("command", "option", "rule"),
    [
        ("train", "runner.epoch=3", "did you mean runner.epochs?"),
        ("train", "runner.train_data_dir=none", "there is no file or folder"),
        ("train", "runner.train_reader_path=none", "there is no such module"),
        ("train", "runner.reader_type=QueueDataset", "create_slots"),
        ("train", "runner.sync_mode=heter", "heter stages don't exist here"),
        ("train", "hyper_parameters.optimizer.class=Adan", "did you mean adam?"),
        ("train", "hyper_parameters.fc_sizes=[1]", "hyper_parameters.fc_sizes"),
        ("infer", "runner.model_save_path=", "runner.infer_load_path: must be given"),
        ("infer", "runner.infer_end_epoch=0", "must be more than infer_start_epoch"),
        ("infer", "runner.infer_load_path=none", "none"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    folder: Path, command: str, option: str, rule: str
) -> None:
    done = run(folder, command, "-o", option)

    assert done.exit_code in {1, 2}
    assert rule in done.stderr
    assert "Traceback" not in done.output


FROZEN = "@dataclasses.dataclass(frozen=True)\nclass Mine(runner.HyperParameters):\n"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            "@dataclasses.dataclass\nclass Mine(runner.HyperParameters):\n    x: int = 1",
            ["line 7: class Mine: cannot inherit non-frozen", "frozen=True"],
        ),
        (
            f"{FROZEN}    x: list[int] = []",
            ["class Mine: mutable default", "default_factory=lambda"],
        ),
        (
            f"{FROZEN}    x: int",
            ["class Mine: its field 'x' has no default"],
        ),
        (
            f"{FROZEN}    x: 'Unknown' = 1",
            ["class Mine: the type of a field can't be found", "Unknown"],
        ),
        (
            "class Mine(runner.HyperParameters):\n    x: int = 1",
            ["class Mine: is no dataclass itself", "frozen=True"],
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass Mine:\n    x: int = 1",
            ["class Model(Model[Mine]): Mine must be a frozen dataclass", "HyperParameters"],
        ),
    ],
)
def test_a_class_of_hyper_parameters_that_no_key_can_fill_is_told(
    folder: Path, parameters: str, words: list[str]
) -> None:
    head, model = MODEL.split("class Net", 1)
    assert head.count("\n") == 5
    model = model.replace("Model[runner.HyperParameters]", "Model[Mine]")
    text = f"{head}import dataclasses\n{parameters}\n\n\nclass Net{model}"
    (folder / "model.py").write_text(text)

    done = run(folder, "train")

    assert done.exit_code == 2
    assert "Traceback" not in done.output
    for word in ["model.py", *words]:
        assert word in done.output


def test_a_gpu_that_is_not_there_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    done = run(folder, "train", "-o", "runner.use_gpu=true")

    assert "no CUDA device" in done.stderr


def test_numbers_are_written_for_tensorboard(folder: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra 'visual' isn't installed",
    )

    done = run(folder, "train", "-o", "runner.use_visual=true", "runner.visual_path=logs")

    assert done.exit_code == 0, done.output
    written = reading.EventAccumulator(str(folder / "logs")).Reload()
    assert {"train/loss", "train/auc", "train/examples_per_s", "test/auc"} <= set(
        written.Tags()["scalars"]
    )
    assert [each.step for each in written.Scalars("train/loss")] == [
        epoch * 8 + step for epoch in range(3) for step in (2, 4, 6, 8)
    ]
    assert written.Scalars("test/auc")[0].value == pytest.approx(1.0)


def test_without_a_folder_nothing_is_written() -> None:
    with visual(None) as write:
        write("train", {"auc": 0.7}, 3)

    assert callable(write)


def test_the_mode_becomes_a_strategy() -> None:
    assert strategy_of(RunnerSettings(sync_mode="sync")).resolve().name == "sync"
    assert strategy_of(RunnerSettings(sync_mode="geo", geo_step=7)).resolve().k_steps == 7
    configs = {"max_staleness": 2}
    mode = strategy_of(RunnerSettings(sync_mode="async", a_sync_configs=configs)).resolve()
    assert (mode.name, mode.max_staleness, mode.send_queue_size) == ("async", 2, None)
    with pytest.raises(StrategyError):
        strategy_of(RunnerSettings(a_sync_configs={"max_stalenes": 2}))
    apart = strategy_of(RunnerSettings(sync_mode="diloco", localsgd_configs={"k_steps": 30}))
    assert apart.diloco
    assert apart.diloco_configs["k_steps"] == 30
    assert apart.resolve().name == "localsgd"
    with pytest.raises(StrategyError, match=r"localsgd_configs.*sync_mode = 'async'"):
        strategy_of(RunnerSettings(localsgd_configs={"k_steps": 30}))


def test_an_optimizer_is_torchs_of_that_name() -> None:
    net = torch.nn.Sequential(fleet.nn.Embedding(0, 2), torch.nn.Linear(2, 1))

    momentum = make_optimizer(net, OptimizerSettings(name="Momentum", reg=0.1))
    adagrad = make_optimizer(net, OptimizerSettings(name="adagrad", learning_rate=0.3))

    assert type(momentum) is torch.optim.SGD
    assert [g["weight_decay"] for g in momentum.param_groups] == [0.1, 0]
    assert {g["momentum"] for g in momentum.param_groups} == {0.9}
    assert type(adagrad) is torch.optim.Adagrad
    assert {g["lr"] for g in adagrad.param_groups} == {0.3}
    with pytest.raises(ConfigError, match="has no such class"):
        make_optimizer(net, OptimizerSettings(name="x"))


@pytest.mark.parametrize("name", ["AdamW", "FTRL", "RowwiseAdagrad"])
def test_rows_of_an_optimizer_that_servers_run_have_no_weight_decay(name: str) -> None:
    net = torch.nn.Sequential(fleet.nn.Embedding(0, 2), torch.nn.Linear(2, 1))

    optimizer = make_optimizer(net, OptimizerSettings(name=name.lower()))

    assert type(optimizer).__name__ == name
    rows = optimizer.param_groups[1]
    assert (
        server_rule(optimizer, rows, sparse=True).record.name.replace("_", "") == name.lower()
    )


def test_the_learning_rate_decays_by_steps() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = make_optimizer(net, OptimizerSettings(name="SGD", learning_rate=1.0))

    scheduler = make_scheduler(optimizer, OptimizerSettings(decay_steps=2, decay_rate=0.5))

    assert scheduler is not None
    rates = []
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.5, 0.5, 0.25]
    assert make_scheduler(optimizer, OptimizerSettings()) is None


def test_a_configuration_answers_paddlerecs_way(folder: Path) -> None:
    config: Config[HyperParameters] = read_config(folder / "config.yaml").read_as(
        HyperParameters
    )

    assert config.get("runner.epochs") == 3
    assert config.get("hyper_parameters.optimizer.class") == "SGD"


PADDLES = """\
import paddle


class DygraphModel():
    def create_optimizer(self, dy_model, config):
        lr = config.get("hyper_parameters.optimizer.learning_rate", 0.001)
        optimizer = paddle.optimizer.Adam(
            learning_rate=lr, parameters=dy_model.parameters())
        return optimizer
"""
"""As PaddleRec's ``dygraph_model.py``."""


@pytest.mark.parametrize("name", ["dygraph_model.py", "static_model.py"])
def test_another_optimizer_than_paddlerecs_code_has_is_told(folder: Path, name: str) -> None:
    (folder / name).write_text(PADDLES)

    done = run(folder, "train", "-o", "runner.epochs=1")

    assert done.exit_code == 0, done.output
    (note,) = [line for line in done.stderr.splitlines() if "optimizer.class" in line]
    assert note.startswith(f"paramfleet train: {folder / 'config.yaml'}: ")
    assert "= SGD: trains with SGD here" in note
    assert f"create_optimizer ({name}) trains with Adam whatever the key says" in note
    assert "-o hyper_parameters.optimizer.class=Adam" in note


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (PADDLES, "hyper_parameters.optimizer.class=adam"),
        (PADDLES.replace("return optimizer", "return paddle.optimizer.SGD()"), "runner.seed=1"),
        (PADDLES.replace("create_optimizer", "create_other"), "runner.seed=1"),
        ("def create_optimizer(:\n", "runner.seed=1"),
    ],
)
def test_of_the_optimizer_that_paddlerecs_code_may_have_nothing_is_told(
    folder: Path, text: str, option: str
) -> None:
    (folder / "dygraph_model.py").write_text(text)

    done = run(folder, "train", "-o", "runner.epochs=1", "-o", option)

    assert done.exit_code == 0, done.output
    assert "optimizer.class" not in done.stderr


def rows_of(folder: Path, epoch: int) -> tuple[list[int], list[list[float]]]:
    rows = fleet.load_rows(folder / "saved" / str(epoch), "ids")
    return rows.ids.tolist(), rows.rows.tolist()


@pytest.mark.parametrize("budget", [0, 150], ids=["whole", "split"])
def test_gpubox_trains_an_epoch_in_passes_to_the_same_bits(
    folder: Path, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    plain = json.loads(run(folder, "train").stdout.splitlines()[-1])
    expected = [rows_of(folder, epoch) for epoch in range(3)]
    caplog.set_level("INFO", logger="paramfleet.training.passes.running")

    gpubox = ["runner.sync_mode=gpubox", f"runner.device_budget={budget}"]
    done = run(folder, "train", "-o", *gpubox)

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["mode"], result["auc"], result["mean"]) == ("local", 1.0, plain["mean"])
    assert [rows_of(folder, epoch) for epoch in range(3)] == expected
    assert "epoch 2, step 8: loss" in done.stderr
    passes = [record for record in caplog.records if record.message == "worker.device_pass"]
    assert len(passes) == 3 if budget == 0 else len(passes) > 3


def test_gpubox_goes_on_inside_an_epoch(folder: Path) -> None:
    gpubox = ["runner.sync_mode=gpubox", "runner.device_budget=150", "runner.epochs=1"]
    timed = "runner.checkpoint_configs={every_s: 1.0e-9, keep: 9, dirname: timed}"
    assert run(folder, "train", "-o", *gpubox, timed).exit_code == 0
    expected = rows_of(folder, 0)
    inside = sorted((folder / "timed").glob("0000*"))
    steps = [int(path.name.rpartition("-")[2]) for path in inside]
    assert steps == sorted(steps)
    assert any(0 < step < 8 for step in steps), steps

    for path, step in zip(inside, steps, strict=True):
        done = run(folder, "train", "-o", *gpubox, f"runner.model_init_path=timed/{path.name}")

        assert done.exit_code == 0, done.output
        assert rows_of(folder, 0) == expected
        assert (f"step {step + 2 - step % 2}" in done.stderr) is (step < 8)
        assert f"step {step - step % 2}:" not in done.stderr


def test_gpubox_trains_on_the_cpu_where_there_is_no_gpu_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    done = run(folder, "train", "-o", "runner.sync_mode=gpubox", "runner.use_gpu=True")

    assert done.exit_code == 0, done.output
    (record,) = [r for r in caplog.records if r.message == "worker.no_cuda_device"]
    assert vars(record)["key"] == "runner.use_gpu"
    refused = run(folder, "train", "-o", "runner.sync_mode=sync", "runner.use_gpu=True")
    assert "this machine has no CUDA device" in refused.stderr


def test_gpubox_is_chosen_by_its_strategy() -> None:
    chosen = strategy_of(RunnerSettings(sync_mode="gpubox")).resolve()
    assert (chosen.name, chosen.k_steps) == ("gpubox", 0)
    with pytest.raises(StrategyError, match="has no effect in gpubox mode"):
        strategy_of(
            RunnerSettings(sync_mode="gpubox", a_sync_configs={"max_staleness": 3})
        ).resolve()


def test_a_checkpoint_of_passes_that_were_trained_before_stays(folder: Path) -> None:
    raw = read_config(folder / "config.yaml", ["runner.sync_mode=gpubox"])
    with pytest.MonkeyPatch.context() as patched:
        saves, told = list[str](), list[str]()
        patched.setattr(fleet, "save_persistables", lambda path: saves.append(path.name))
        trainer = object.__new__(Trainer)
        trainer._model = load_model_class(raw)(raw.read_as(HyperParameters))
        (folder / "saved" / "1").mkdir(parents=True)
        for took in (True, False):
            trainer._took_steps = took
            for epoch in (1, 2):
                trainer.save(epoch, told.append)
    assert saves == ["1", "2", "2"]
    named = [folder / "saved" / each for each in saves]
    assert told == [f"checkpoint saved: {each}" for each in named]


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("train_data_dir", "runner.pipe_command=true"),
        ("train_data_dir", "runner.reader_type=InmemoryDataset"),
        ("test_data_dir", "runner.test_data_dir=empty"),
    ],
)
def test_files_without_examples_are_refused(folder: Path, key: str, option: str) -> None:
    slotted(folder)
    (folder / "empty").mkdir()
    (folder / "empty" / "rows").write_text("\n\n")
    words = ["-o", "runner.reader_type=QueueDataset", option]
    if "Inmemory" in option:
        words.append("runner.train_data_dir=empty")

    done = run(folder, "train", *words)

    assert done.exit_code == 2
    assert f"runner.{key} = " in done.stderr
    assert "its files have no examples" in done.stderr


def test_folders_among_the_files_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "data" / "more").mkdir()

    assert run(folder, "train", "-o", "runner.epochs=1").exit_code == 0

    (record, *_) = [r for r in caplog.records if r.getMessage() == "worker.folders_not_read"]
    assert vars(record)["folders"] == ["more"]


def test_keys_that_nothing_reads_are_named_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ["runner.runner_result_dump_path=x", "hyper_parameters.num_devices=1"]

    assert run(folder, "train", "-o", "runner.epochs=1", *keys).exit_code == 0

    (record,) = [r for r in caplog.records if r.getMessage() == "worker.keys_not_read"]
    assert vars(record)["keys"] == [
        "runner.runner_result_dump_path (-o)",
        "hyper_parameters.num_devices (-o)",
    ]
