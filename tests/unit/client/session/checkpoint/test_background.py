"""A save beside the training: one at a time, reported once, begun again if it is lost."""

import threading
from collections.abc import Callable
from pathlib import Path

from paramfleet.session.checkpoint.background import BackgroundSaves, Outcome
from paramfleet_shared.checkpoint.cuts import Cut, SaveGoneError
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S

WHOLE = Cut(consistent=True)


class Save:
    is_beside = True
    is_increment = False

    def __init__(self, end: Callable[[], Cut]) -> None:
        self.end = end


def gone() -> Cut:
    raise SaveGoneError(name="a")


def full() -> Cut:
    raise CheckpointWriteError(path="x", reason="No space left on device")


def test_the_caller_goes_on_while_it_is_written() -> None:
    may_end, done = threading.Event(), list[Outcome]()

    def end() -> Cut:
        assert may_end.wait(LATE_S)
        return WHOLE

    saves, begin = BackgroundSaves(FakeClock()), lambda _: Save(end)
    saves.start(begin, Path("a"), done.append)
    was_busy = saves.is_busy
    assert (was_busy, done) == (True, [])

    may_end.set()
    saves.settle()

    assert not saves.is_busy
    assert [(each["dirname"], each["error"], each["consistent"]) for each in done] == [
        ("a", "", True)
    ]


def test_another_waits_for_the_one_that_is_on_its_way() -> None:
    ended = list[str]()

    def begin(folder: Path) -> Save:
        ended.append(f"begins {folder}")

        def end() -> Cut:
            ended.append(f"ends {folder}")
            return WHOLE

        return Save(end)

    saves = BackgroundSaves(FakeClock())
    for name in ("a", "b"):
        saves.start(begin, Path(name), lambda _: None)
    saves.settle()

    assert ended == ["begins a", "ends a", "begins b", "ends b"]


def test_one_that_a_pserver_has_lost_begins_again_at_the_next_step() -> None:
    ends, done = [gone, gone, lambda: WHOLE], list[Outcome]()
    saves, begin = BackgroundSaves(FakeClock()), lambda _: Save(ends.pop(0))

    saves.start(begin, Path("a"), done.append)
    saves.settle()

    assert not ends
    assert [each["error"] for each in done] == [""]


def test_one_that_is_lost_each_time_fails_by_name() -> None:
    done = list[Outcome]()
    saves, begin = BackgroundSaves(FakeClock()), lambda _: Save(gone)

    saves.start(begin, Path("a"), done.append)
    saves.settle()

    (outcome,) = done
    assert "its pserver was restarted" in outcome["error"]
    assert outcome["consistent"] is None


def test_a_failure_is_reported_and_the_next_one_is_tried() -> None:
    ends, done = [full, lambda: WHOLE], list[Outcome]()
    saves, begin = BackgroundSaves(FakeClock()), lambda _: Save(ends.pop(0))

    for name in ("a", "b"):
        saves.start(begin, Path(name), done.append)
        saves.settle()

    assert [(each["dirname"], each["error"] == "") for each in done] == [
        ("a", False),
        ("b", True),
    ]


def test_one_that_cannot_begin_is_reported_too() -> None:
    done = list[Outcome]()

    def begin(folder: Path) -> Save:
        raise CheckpointWriteError(path=str(folder), reason="no")

    saves = BackgroundSaves(FakeClock())
    saves.start(begin, Path("a"), done.append)

    assert not saves.is_busy
    assert done[0]["error"] == "a: no"
