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


def without(found: dict[str, Any], steps: range, rank: int = 1) -> dict[str, Any]:
    """Return what a worker finds if steps of another one are in no pserver."""
    for step in steps:
        for id_ in step_ids(rank, step):
            found["rows"][str(id_)] = [0.0] * 4
        for place in found["places"]:
            place[own_place(rank, step, STEPS)] = 0.0
    return found


def test_what_a_dead_worker_had_not_sent_may_be_missing() -> None:
    plan = Plan(seed=1, mode="async", steps=STEPS, elastic=True)

    said = check(plan, [without(right(0, "async"), range(3, STEPS + 1))], {1: 2})

    assert (said.problems, said.lost, said.acked) == ([], 0, STEPS)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_what_a_dead_worker_had_sent_is_there_once(mode: Mode) -> None:
    plan = Plan(seed=1, mode=mode, steps=STEPS, elastic=True)
    found = right(0, mode)
    found["rows"][str(step_ids(1, 2)[0])] = [2.0 * factor_of(1, 2)] * 4

    said = check(plan, [found], {1: STEPS})

    assert said.doubled == 1
    assert said.problems
    assert said.lost == 0


def test_a_dead_worker_can_not_have_lost_what_it_sent_long_before() -> None:
    steps, died_at = 100, 90
    plan = Plan(seed=1, mode="async", steps=steps, elastic=True)
    places = [[0.0] * (SIZE * steps) for _ in range(PLACES)]
    rows: dict[str, list[float]] = {str(id_): [0.0] * 4 for id_ in (*common_ids(), *own_ids(0))}
    rows |= {str(id_): [0.0] * 4 for id_ in own_ids(1)}
    for step in range(1, steps + 1):
        for rank in range(SIZE):
            value = 0.0 if (rank, step) == (1, 5) else float(factor_of(rank, step))
            rows |= {str(id_): [value] * 4 for id_ in step_ids(rank, step)}
            for place in places:
                place[own_place(rank, step, steps)] = value
    found = {**right(0, "async"), "rows": rows, "places": places}
    found |= {"common": [0.0] * COMMON, "own": [[0.0] * OWN for _ in range(SIZE)]}

    said = check(plan, [found], {1: died_at})

    assert said.lost == 1
