"""The newest whole checkpoint is chosen, and what is passed over is named."""

from datetime import UTC, datetime, timedelta
from typing import Any

from paramfleet_worker.core.checkpoints.choosing import Listed, choose, newest_first

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)


def listed(name: str, *, minute: int = 0, **facts: Any) -> Listed:
    at = BEGIN + timedelta(minutes=minute)
    return Listed(name=name, path=f"/saved/{name}", written_at=at, **facts)


def nothing(each: Listed) -> str:
    return ""


def test_the_newest_comes_first_by_time_then_step_then_name() -> None:
    found = [
        listed("a", minute=1, step=9),
        listed("c", minute=2, step=5),
        listed("b", minute=2, step=7),
        listed("d", minute=2, step=5),
    ]

    assert [each.name for each in newest_first(found)] == ["b", "d", "c", "a"]


def test_a_clock_that_was_set_back_makes_no_later_number_older() -> None:
    found = [
        listed("000003-step-30", minute=63),
        listed("000004-step-40", minute=64),
        listed("000005-step-50", minute=5),
        listed("000006-step-60", minute=6),
        listed("operator-1", minute=7),
        listed("operator-2", minute=90),
    ]

    assert [each.name for each in newest_first(found)] == [
        "operator-2",
        "000006-step-60",
        "000005-step-50",
        "000004-step-40",
        "000003-step-30",
        "operator-1",
    ]


def test_a_clock_that_was_set_back_makes_no_later_day_older() -> None:
    found = [
        listed("20260101/6", minute=63),
        listed("20260101/12", minute=5),
        listed("20260102/0", minute=6),
        listed("20261301/0", minute=1),
        listed("000001-step-9", minute=7),
    ]

    assert [each.name for each in newest_first(found)] == [
        "20260102/0", "20260101/12", "20260101/6", "000001-step-9", "20261301/0",
    ]  # fmt: skip


def test_only_candidates_are_read_and_the_first_whole_one_is_chosen() -> None:
    found = [listed("old", minute=1), listed("whole", minute=2), listed("bad", minute=3)]
    read = []

    def problem_of(each: Listed) -> str:
        read.append(each.name)
        return "a file has another SHA-256" if each.name == "bad" else ""

    choice = choose(found, problem_of)

    assert choice.chosen == found[1]
    assert read == ["bad", "whole"]
    assert choice.skipped == ((found[2], "a file has another SHA-256"),)


def test_what_lacks_a_file_is_not_read() -> None:
    found = [listed("bad", minute=1, problem="part0: No such file or directory")]

    choice = choose(found, lambda each: "was read")

    assert choice.chosen is None
    assert choice.damaged == ((found[0], found[0].problem),)


def test_what_was_never_whole_is_not_damaged() -> None:
    unfinished = listed(".one.partial", problem="it is unfinished", unfinished=True)

    choice = choose([unfinished], nothing)

    assert choice.chosen is None
    assert choice.damaged == ()
    assert choice.skipped == ((unfinished, "it is unfinished"),)


def test_no_checkpoint_is_no_choice() -> None:
    assert choose([], nothing) == (None, ())


def test_what_programs_get_has_times_as_text() -> None:
    found = listed("one", minute=5, step=7, consistent=True).to_json()

    assert found["written_at"] == "2026-05-01T00:05:00+00:00"
    assert found["whole"] is True
    assert found["step"] == 7
