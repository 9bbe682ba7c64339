"""A load names what checkpoint and model don't share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import TrainingMode
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.load_notes import note_unsaved_states
from paramfleet.training.optimizer import DistributedOptimizer


def made(
    inner: Callable[..., torch.optim.Optimizer] = torch.optim.Adagrad, **keys: Any
) -> Saving:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="words"), torch.nn.Linear(2, 1))
    )
    optimizer = session.distributed_optimizer(inner(model.parameters(), lr=0.1, **keys))
    session.init_worker()
    optimizer.minimize(model(torch.arange(9)).pow(2).sum())
    return Saving(session)


@pytest.mark.parametrize("mode", ["local", "geo", "async"])
@pytest.mark.parametrize(
    ("inner", "keys", "unsaved", "remedy"),
    [
        (torch.optim.RMSprop, {}, ["dense_0", "words"], "use SGD, "),
        (torch.optim.AdamW, {"amsgrad": True}, ["dense_0", "words"], "leave it out"),
        (torch.optim.AdamW, {}, [], ""),
        (torch.optim.SGD, {"weight_decay": 0.1}, [], ""),
    ],
)
def test_states_that_no_checkpoint_will_hold_are_named_at_the_start(
    caplog: pytest.LogCaptureFixture,
    mode: Any,
    inner: Any,
    keys: Any,
    unsaved: list[str],
    remedy: str,
) -> None:
    parameters = torch.nn.Sequential(
        fleet.nn.Embedding(0, 2, name="words"), torch.nn.Linear(2, 1)
    ).parameters()
    times = StepTimes(lambda: 0.0)
    optimizer = DistributedOptimizer(
        inner(parameters, lr=0.1, **keys), TrainingMode(name=mode), lambda: 1, times
    )

    note_unsaved_states(optimizer)

    found = warned(caplog, "worker.states_not_saved")
    if mode == "async":  # whose pservers refuse it
        unsaved = []
    assert [(each["optimizer"], each["tables"]) for each in found] == (
        [(inner.__name__, unsaved)] if unsaved else []
    )
    assert all(remedy in each["remedy"] for each in found)
    assert not any("geo" in each["remedy"] for each in found)


def test_a_script_is_warned_once_when_it_makes_its_optimizer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(torch.optim.RMSprop)

    assert len(warned(caplog, "worker.states_not_saved")) == 1


def without(folder: Path, table: str) -> None:
    """Take a table out of a checkpoint."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tables"] = [each for each in manifest["tables"] if each["name"] != table]
    manifest["files"] = [each for each in manifest["files"] if each["table"] != table]
    manifest["parameters"].pop(table, None)
    path.write_text(json.dumps(manifest))


def warned(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(each) for each in caplog.records if each.getMessage() == event]


@pytest.mark.parametrize(
    ("table", "remedy"), [("words", "name="), ("dense_0", "parameter group N")]
)
def test_a_table_that_the_checkpoint_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, remedy: str
) -> None:
    made().save_persistables(tmp_path / "one")
    without(tmp_path / "one", table)

    lacking = made().load_model(tmp_path / "one")

    assert lacking == [table]
    (facts,) = warned(caplog, "worker.tables_not_in_checkpoint")
    assert facts["missing"] == [table]
    assert facts["folder"] == str(tmp_path / "one")
    assert remedy in facts["remedy"]


def test_of_a_checkpoint_of_the_same_model_nothing_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made().save_persistables(tmp_path / "one")

    assert made().load_model(tmp_path / "one") == []

    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_columns_of_state_that_differ_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made().save_persistables(tmp_path / "one")
    path = tmp_path / "one" / "manifest.json"
    manifest = json.loads(path.read_text())
    for file in manifest["files"]:
        assert file["columns"] == [["sum", {"words": 2}.get(file["table"], 1)]]
        file["columns"] = [["shows", file["columns"][0][1]]]
    path.write_text(json.dumps(manifest))

    made().load_model(tmp_path / "one")

    found = warned(caplog, "worker.columns_differ")
    assert [(each["table"], each["anew"], each["dropped"]) for each in found] == [
        ("words", ("sum",), ("shows",)),
        ("dense_0", ("sum",), ("shows",)),
    ]


@pytest.mark.parametrize(
    ("inner", "keys", "anew"),
    [
        (torch.optim.RMSprop, {}, ["dense_0", "words"]),
        (torch.optim.AdamW, {}, []),
        (torch.optim.SGD, {}, []),
        (torch.optim.SGD, {"weight_decay": 0.1}, []),
        (torch.optim.Adam, {}, []),
    ],
)
def test_states_that_no_checkpoint_has_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inner: Any, keys: Any, anew: list[str]
) -> None:
    made(inner, **keys).save_persistables(tmp_path / "one")

    made(inner, **keys).load_model(tmp_path / "one")

    found = warned(caplog, "worker.states_begin_anew")
    assert [(each["optimizer"], each["tables"]) for each in found] == (
        [(inner.__name__, anew)] if anew else []
    )


@pytest.mark.parametrize(
    ("inner", "keys", "is_named"),
    [
        (torch.optim.SGD, {}, False),
        (torch.optim.SGD, {"momentum": 0.9}, True),
        (torch.optim.SGD, {"weight_decay": 0.1}, True),
        (torch.optim.Adagrad, {}, False),
        (torch.optim.Adagrad, {"weight_decay": 0.1}, True),
        (torch.optim.Adam, {}, True),
        (torch.optim.RMSprop, {}, True),
        (fleet.optim.RowwiseAdagrad, {}, False),
        (fleet.optim.FTRL, {}, False),
    ],
)
def test_rows_that_torch_would_move_without_a_gradient_are_named(
    caplog: pytest.LogCaptureFixture, inner: Any, keys: Any, is_named: bool
) -> None:
    made(inner, **keys)

    tables = [each["tables"] for each in warned(caplog, "worker.idle_rows_stay")]

    assert tables == [["words"]] * is_named


def test_rows_by_sparse_adam_are_as_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    rows = session.distributed_model(fleet.nn.Embedding(9, 2, name="words"))
    session.distributed_optimizer(torch.optim.SparseAdam(rows.parameters()))

    assert not warned(caplog, "worker.idle_rows_stay")
