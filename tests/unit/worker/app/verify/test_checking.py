"""The numbers of a run are right, or what is wrong with them is said."""

from collections.abc import Callable
from typing import Any

import pytest

from paramfleet_worker.app.verify.checking import Checked, check, recovery_times
from paramfleet_worker.app.verify.plan import MODES, Mode, Plan
from paramfleet_worker.app.verify.sums import (
    COMMON,
    OWN,
    PLACES,
    common_ids,
    factor_of,
    own_ids,
    own_place,
    scale_of,
    step_ids,
    sum_of,
)

STEPS = 6
SIZE = 2


def right(rank: int, mode: Mode) -> dict[str, Any]:
    """Return what a worker finds if nothing was lost."""
    scale = scale_of(mode, SIZE)
    sums = [sum_of(other, STEPS) * scale for other in range(SIZE)]
    places = [[0.0] * (SIZE * STEPS) for _ in range(PLACES)]
    rows = {str(id_): [sum(sums)] * 4 for id_ in common_ids()}
    for other in range(SIZE):
        rows |= {str(id_): [sums[other]] * 4 for id_ in own_ids(other)}
        for step in range(1, STEPS + 1):
            value = factor_of(other, step) * scale
            rows |= {str(id_): [value] * 4 for id_ in step_ids(other, step)}
            for place in places:
                place[own_place(other, step, STEPS)] = value
    found = {
        "rank": rank,
        "times": [float(step) for step in range(STEPS)],
        "lead": 0,
        "fallen": [],
        "places": places,
        "common": [sum(sums)] * COMMON,
        "own": [[each] * OWN for each in sums],
    }
    return found if mode == "localsgd" else {**found, "rows": rows}


def checked(
    change: Callable[[dict[str, Any]], None] = lambda _: None,
    *,
    mode: Mode = "async",
    only: int | None = None,
    max_staleness: int | None = None,
) -> Checked:
    """Return what is said of numbers that a test has changed, in one worker or in all."""
    found = [right(rank, mode) for rank in range(SIZE)]
    for rank, worker in enumerate(found):
        if only in {None, rank}:
            change(worker)
    plan = Plan(seed=1, mode=mode, steps=STEPS, max_staleness=max_staleness)
    return check(plan, found)


@pytest.mark.parametrize("mode", MODES)
def test_right_numbers_are_right(mode: Mode) -> None:
    found = checked(mode=mode)

    assert found == Checked(acked=SIZE * STEPS)


def test_a_change_that_one_row_lacks_is_lost() -> None:
    (id_, *_) = step_ids(1, 3)

    found = checked(lambda worker: worker["rows"].update({str(id_): [0.0] * 4}))

    assert (found.lost, found.doubled) == (1, 0)
    assert found.problems[0] == (
        f"worker 0: row {id_} of step 3 of worker 1 is 0, not {factor_of(1, 3)}"
    )


def test_a_change_that_one_value_has_twice_is_doubled() -> None:
    def twice(worker: dict[str, Any]) -> None:
        worker["places"][1][own_place(0, 2, STEPS)] *= 2

    found = checked(twice)

    assert (found.lost, found.doubled) == (0, 1)
    assert "dense value 1 of step 2 of worker 0" in found.problems[0]


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_what_is_no_number_is_lost(number: float) -> None:
    def spoil(worker: dict[str, Any]) -> None:
        worker["places"][0][0] = number

    assert checked(spoil).lost == 1


@pytest.mark.parametrize("name", ["common", "own"])
def test_a_sum_that_is_wrong_is_named(name: str) -> None:
    def spoil(worker: dict[str, Any]) -> None:
        inner = worker[name][0] if name == "own" else worker[name]
        inner[0] += 1

    found = checked(spoil)

    assert f"worker 0: {name} dense value 0" in found.problems[0]


def test_workers_have_to_end_with_the_same_numbers() -> None:
    def round_off(worker: dict[str, Any]) -> None:
        worker["common"][0] += 0.001

    found = checked(round_off, only=1)

    assert found.problems == ["workers 0 and 1 ended with other numbers"]


@pytest.mark.parametrize(("mode", "wrong"), [("sync", True), ("async", False)])
def test_sync_is_equal_to_the_bit(mode: Mode, *, wrong: bool) -> None:
    def round_off(worker: dict[str, Any]) -> None:
        worker["common"][0] += 0.001

    assert bool(checked(round_off, mode=mode).problems) is wrong


def test_a_version_that_fell_is_a_problem() -> None:
    found = checked(lambda worker: worker["fallen"].append("pserver 0 term 2: 3 after 4"))

    assert found.problems[0] == "worker 0: a version fell: pserver 0 term 2: 3 after 4"


@pytest.mark.parametrize(("lead", "wrong"), [(3, False), (4, True)])
def test_a_lead_beyond_the_bound_is_a_problem(lead: int, *, wrong: bool) -> None:
    found = checked(lambda worker: worker.update(lead=lead), max_staleness=2)

    assert bool(found.problems) is wrong


def test_recovery_lasts_until_all_have_ended_a_step_that_began_after_the_kill() -> None:
    found = [{"times": [1.0, 2.0, 5.0, 6.0]}, {"times": [1.5, 3.5, 7.0]}]

    assert recovery_times([1.2, 6.5], found) == [pytest.approx(3.8)]
