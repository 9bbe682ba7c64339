"""Checkpoints that the strategy asks for, by time, in one process."""

import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.api.operator_commands import Conduct
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import DistributedStrategy, StrategyError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.checkpoint.whole_folders import held
from paramfleet.session.session import Session
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.checkpoint.manifest import read_manifest
from paramfleet_shared.discovery.orders import CheckpointOrder, Orders
from paramfleet_shared.testing.clock import FakeClock


class Training:
    """One process that trains, a step a second."""

    def __init__(self, **configs: Any) -> None:
        self.clock = FakeClock()
        self.session = session = Session()
        saving = Saving(session, self.clock)
        self.conduct = Conduct(session, saving, self.clock)
        session.init(RoleMaker(distributed=False))
        start = fleet.nn.constant(0.0)
        model = torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="p", initializer=start))
        self.model = session.distributed_model(model)
        strategy = DistributedStrategy()
        strategy.checkpoint_configs = configs
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        self.optimizer = session.distributed_optimizer(inner, strategy)
        session.init_worker()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.clock.jump(1.0)
            self.optimizer.minimize(-self.model(torch.arange(9)).sum())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_so_often_a_whole_checkpoint_is_written_and_the_old_ones_go(
    tmp_path: Path,
) -> None:
    training = Training(every_s=3, keep=2, dirname=str(tmp_path / "kept"))
    training.steps(3)
    assert not (tmp_path / "kept").exists()

    training.steps(1)
    assert names(tmp_path / "kept") == ["000001-step-4", "latest"]
    training.steps(6)

    assert names(tmp_path / "kept") == ["000002-step-7", "000003-step-10", "latest"]
    assert os.readlink(tmp_path / "kept" / "latest") == "000003-step-10"  # noqa: PTH115 - as it is
    manifest = read_manifest(tmp_path / "kept" / "latest")
    assert manifest.cut is not None
    assert manifest.cut.consistent
    assert training.session.progress.facts()["periodic_checkpoint"]["error"] == ""


def test_the_newest_can_be_loaded_by_its_pointer(tmp_path: Path) -> None:
    training = Training(every_s=3, dirname=str(tmp_path))
    training.steps(5)
    at_4 = torch.full((9, 2), 4.0)

    again = Training()
    Saving(again.session).load_model(tmp_path / "latest")

    assert torch.equal(again.model(torch.arange(9)), at_4)


def left(folder: Path) -> None:
    """Make what a save that was killed an hour ago has left."""
    folder.mkdir(exist_ok=True)
    (folder / "t.safetensors").write_bytes(b"half")
    an_hour_ago = time.time() - 3600  # noqa: TID251 - what the file system counts
    for path in (folder / "t.safetensors", folder):
        os.utime(path, (an_hour_ago, an_hour_ago))


def test_a_later_run_goes_on_counting_and_clears_what_was_left_half_written(
    tmp_path: Path,
) -> None:
    Training(every_s=1, keep=2, dirname=str(tmp_path)).steps(4)
    left(tmp_path / ".000004-step-9.0123abcd.partial")
    left(tmp_path / ".of-somebody-else.partial")

    later = Training(every_s=1, keep=2, dirname=str(tmp_path))
    later.steps(2)

    others = [".of-somebody-else.partial", "000002-step-3", "000003-step-4"]
    assert names(tmp_path) == [*others, "000004-step-2", "latest"]
    left(tmp_path / ".000004-step-2.0123abcd.partial")  # a compact that was killed meanwhile
    later.steps(1)
    assert names(tmp_path) == [*others, "000004-step-2", "000005-step-3", "latest"]


def test_a_training_from_nothing_removes_no_checkpoint_of_another_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Training(every_s=1, keep=2, dirname=str(tmp_path)).steps(4)
    assert not caplog.records

    Training(every_s=1, keep=2, dirname=str(tmp_path)).steps(5)

    assert [name for name in names(tmp_path) if name != "latest"] == [
        "000002-step-3", "000003-step-4", "000006-step-4", "000007-step-5",
    ]  # fmt: skip
    (said,) = caplog.records
    assert said.getMessage() == "worker.checkpoints_of_another_run"
    facts = vars(said)
    assert (facts["folder"], facts["checkpoints"]) == (str(tmp_path), 2)
    assert "--resume" in facts["remedy"]


def test_a_training_that_continues_removes_those_that_it_continues_from(tmp_path: Path) -> None:
    Training(every_s=1, keep=2, dirname=str(tmp_path)).steps(4)

    again = Training(every_s=1, keep=2, dirname=str(tmp_path))
    again.optimizer.num_steps = 4  # as of a resume
    again.steps(3)

    assert [name for name in names(tmp_path) if name != "latest"] == [
        "000004-step-6", "000005-step-7",
    ]  # fmt: skip


def test_saves_that_are_numbered_clear_what_none_is_writing(tmp_path: Path) -> None:
    saving, kept = Saving(Training().session), tmp_path / "kept"
    saving.save_persistables(kept, keep=1)
    killed, writes, newer, link, file = [
        kept / f".000002-step-{number}.0123abcd.partial" for number in range(5)
    ]
    left(killed)
    left(newer)
    (newer / "t.safetensors").write_bytes(b"now")
    link.symlink_to(tmp_path / "elsewhere")
    left(tmp_path / "elsewhere")
    file.write_text("mine")
    with held(writes):
        left(writes)
        saving.save_persistables(kept, keep=1)
        assert names(kept) == [
            writes.name, newer.name, link.name, file.name, "000002-step-0", "latest",
        ]  # fmt: skip

    saving.save_persistables(kept, keep=1)

    assert names(kept)[:2] == [newer.name, link.name]
    assert (tmp_path / "elsewhere" / "t.safetensors").exists()


def test_a_full_disk_is_told_and_neither_ends_the_training_nor_removes_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(every_s=1, keep=1, dirname=str(tmp_path))
    training.steps(2)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(_descriptor: int) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        training.steps(2)

    assert "worker.checkpoint_failed" in caplog.text
    done = training.session.progress.facts()["periodic_checkpoint"]
    assert "No space left on device" in done["error"]
    assert names(tmp_path) == ["000001-step-2", "latest"]
    training.steps(1)
    assert names(tmp_path) == ["000002-step-5", "latest"]


def test_what_stands_in_the_pointer_s_place_is_told_and_old_ones_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "latest").mkdir()
    training = Training(every_s=1, keep=1, dirname=str(tmp_path))

    training.steps(3)

    assert names(tmp_path) == ["000001-step-2", "000002-step-3", "latest"]
    assert "worker.checkpoint_pointer_failed" in caplog.text


def test_a_manifest_with_a_time_of_no_year_in_utc_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Training(every_s=1, dirname=str(tmp_path)).steps(2)
    planted = (tmp_path / "000001-step-2").rename(tmp_path / "000007-step-2")
    document = json.loads((planted / "manifest.json").read_text())
    document["written_at"] = "0001-01-01T00:00:00+14:00"
    (planted / "manifest.json").write_text(json.dumps(document))
    training = Training(every_s=1, keep=2, dirname=str(tmp_path))
    training.optimizer.num_steps = 2  # as of a resume

    training.steps(2)

    assert names(tmp_path) == ["000007-step-2", "000008-step-4", "latest"]
    assert "worker.checkpoint_not_removed" in caplog.text
    training.steps(1)
    assert names(tmp_path) == ["000008-step-4", "000009-step-5", "latest"]


def test_every_so_many_steps_one_is_written_into_the_folder_by_its_other_name(
    tmp_path: Path,
) -> None:
    training = Training(every_steps=3, keep=9, dir=str(tmp_path))
    training.steps(7)

    assert names(tmp_path) == ["000001-step-3", "000002-step-6", "latest"]


def test_the_earlier_of_time_and_steps_counts(tmp_path: Path) -> None:
    training = Training(every_steps=5, every_s=2, keep=9, dir=str(tmp_path))
    training.steps(5)

    assert names(tmp_path) == ["000001-step-3", "000002-step-5", "latest"]


def test_steps_count_from_where_a_load_leads_back_to(tmp_path: Path) -> None:
    training = Training(every_steps=3, keep=9, dir=str(tmp_path))
    training.steps(7)
    Saving(training.session).load_model(tmp_path / "000001-step-3")
    training.steps(4)

    assert training.optimizer.num_steps == 7
    assert names(tmp_path) == [
        "000001-step-3", "000002-step-6", "000003-step-7", "latest",
    ]  # fmt: skip


def test_without_the_keys_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Training().steps(100)

    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("configs", "rule"),
    [
        ({"every": 3}, "did you mean 'every_s'"),
        ({"every_s": 0}, "must be above 0"),
        ({"every_s": float("nan")}, "must be a finite number"),
        ({"every_s": float("inf")}, "must be a finite number"),
        ({"every_s": "3"}, "must be a number"),
        ({"every_s": 3, "keep": 0}, "must be at least 1"),
        ({"every_s": 3, "keep": True}, "must be a whole number"),
        ({"every_s": 3, "dirname": ""}, "must not be empty"),
        ({"every_s": 3, "dirname": "a\0b"}, "control characters"),
        ({"every_s": 3, "every_steps": 0}, "must be at least 1"),
        ({"every_s": 3, "incremental": -1}, "must be at least 0"),
        ({"every_s": 3, "dirname": "a", "dir": "b"}, "is another name of dirname"),
        ({"every_s": 3, "dir": "a\0b"}, "control characters"),
        ({"keep": 4}, "has no effect without every_s"),
        ({"dirname": "x"}, "has no effect without every_s"),
    ],
    ids=str,
)
def test_a_wrong_key_or_value_is_refused(configs: dict[str, Any], rule: str) -> None:
    with pytest.raises(StrategyError, match=rule):
        Training(**configs)


def test_a_collective_job_has_no_servers_to_save_from() -> None:
    strategy = DistributedStrategy()
    strategy.checkpoint_configs["every_s"] = 60
    strategy.a_sync = False

    with pytest.raises(StrategyError, match="is_collective = True"):
        strategy.resolve_collective()


def in_pass(patched: pytest.MonkeyPatch, *, is_open: bool) -> None:
    patched.setattr(DistributedOptimizer, "is_in_pass", property(lambda _: is_open))


def test_a_checkpoint_that_is_due_during_a_pass_is_written_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(every_s=3, dirname=str(tmp_path / "kept"))
    in_pass(monkeypatch, is_open=True)
    training.steps(6)
    training.conduct.between_passes()
    assert not (tmp_path / "kept").exists()

    in_pass(monkeypatch, is_open=False)
    training.conduct.between_passes()
    training.conduct.between_passes()

    assert names(tmp_path / "kept") == ["000001-step-6", "latest"]


def test_a_checkpoint_that_is_asked_for_during_a_pass_is_written_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    order = CheckpointOrder(number=1, dirname=str(tmp_path / "asked"))
    communicator = SimpleNamespace(wait=None)
    monkeypatch.setattr(Session, "communicator", communicator)
    monkeypatch.setattr(
        training.session.backend, "orders", lambda: Orders(version=1, checkpoint=order)
    )
    in_pass(monkeypatch, is_open=True)
    training.steps(2)
    assert "checkpoint" not in training.session.progress.facts()

    in_pass(monkeypatch, is_open=False)
    training.conduct.between_passes()

    done = training.session.progress.facts()["checkpoint"]
    assert (done["number"], done["error"]) == (1, "")
    assert read_manifest(tmp_path / "asked").cut is not None
    training.steps(1)
    assert names(tmp_path) == ["asked"]


def test_before_an_optimizer_nothing_waits() -> None:
    session = Session()
    Conduct(session, Saving(session)).between_passes()
