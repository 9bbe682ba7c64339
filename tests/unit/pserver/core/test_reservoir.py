"""A synchronous step is applied when whole, in rank order, once."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.core.membership import StepMembers
from paramfleet_pserver.core.reservoir import CompleteStep, StepReservoir
from paramfleet_shared.errors.served import (
    BadWeightError,
    NotAMemberError,
    PushRepeatedError,
    StepBegunError,
    StepPassedError,
    StepTooEarlyError,
)
from paramfleet_shared.values.ids import Rank, Step

ADA, BOB = Rank(0), Rank(1)


def reservoir_for(num_workers: int, **limits: int) -> StepReservoir[str]:
    return StepReservoir(StepMembers(num_workers=num_workers), **limits)


def drained(reservoir: StepReservoir[str]) -> list[CompleteStep[str]]:
    steps = []
    while (step := reservoir.take()) is not None:
        steps.append(step)
    return steps


def test_a_step_comes_out_when_every_member_has_pushed_in_rank_order() -> None:
    reservoir = reservoir_for(2)

    reservoir.add(BOB, Step(0), 3.0, "b")
    assert reservoir.take() is None
    assert reservoir.missing() == (ADA,)
    reservoir.add(ADA, Step(0), 1.0, "a")

    complete = reservoir.take()
    assert complete is not None
    assert complete.step == 0
    assert [(c.rank, c.scale, c.payload) for c in complete.contributions] == [
        (ADA, 0.25, "a"),
        (BOB, 0.75, "b"),
    ]
    assert reservoir.next_step == 1
    assert reservoir.take() is None


def test_between_two_steps_nobody_has_pushed_the_next_one() -> None:
    reservoir = reservoir_for(2)
    reservoir.check_untouched(ADA, Step(0))
    with pytest.raises(StepTooEarlyError):
        reservoir.check_untouched(ADA, Step(1))

    reservoir.add(BOB, Step(0), 1.0, "b")
    with pytest.raises(StepBegunError, match="worker 1 has pushed already"):
        reservoir.check_untouched(ADA, Step(0))
    with pytest.raises(StepPassedError):
        reservoir.check_untouched(BOB, Step(0))
    reservoir.add(ADA, Step(0), 1.0, "a")
    assert len(drained(reservoir)) == 1

    reservoir.check_untouched(BOB, Step(1))
    assert reservoir.num_members == 2
    reservoir.leave(BOB, Step(1))
    assert reservoir.num_members == 1
    with pytest.raises(NotAMemberError):
        reservoir.check_untouched(BOB, Step(1))


def test_who_has_not_pushed_a_step_that_another_has_is_awaited_in_it() -> None:
    reservoir = reservoir_for(3)
    assert not reservoir.is_awaited(ADA, Step(0))

    reservoir.add(BOB, Step(0), 1.0, "b")

    assert reservoir.is_awaited(ADA, Step(0))
    assert not reservoir.is_awaited(BOB, Step(0))
    assert not reservoir.is_awaited(ADA, Step(1))
    reservoir.leave(ADA, Step(0))
    with pytest.raises(NotAMemberError):
        reservoir.is_awaited(ADA, Step(0))


def test_a_lone_member_counts_whole_whatever_its_weight() -> None:
    reservoir = reservoir_for(1)

    reservoir.add(ADA, Step(0), 0.1, "a")

    (complete,) = drained(reservoir)
    assert complete.contributions[0].scale == 1.0


def test_where_losses_are_sums_each_worker_counts_whole_unless_it_has_no_examples() -> None:
    reservoir = reservoir_for(3)
    reservoir.sums = True

    for rank, weight in ((ADA, 8.0), (BOB, 3.0), (Rank(2), 0.0)):
        reservoir.add(rank, Step(0), weight, str(rank))

    (complete,) = drained(reservoir)
    assert [each.scale for each in complete.contributions] == [1.0, 1.0, 0.0]


def test_a_step_without_any_weight_moves_nothing() -> None:
    reservoir = reservoir_for(1)

    reservoir.add(ADA, Step(0), 0.0, "a")

    (complete,) = drained(reservoir)
    assert complete.contributions[0].scale == 0.0


def test_steps_pushed_ahead_wait_for_the_ones_before() -> None:
    reservoir = reservoir_for(1)

    reservoir.add(ADA, Step(1), 1.0, "second")
    assert drained(reservoir) == []
    reservoir.add(ADA, Step(0), 1.0, "first")

    assert [c.contributions[0].payload for c in drained(reservoir)] == ["first", "second"]


def test_a_leave_completes_the_steps_that_waited_for_it() -> None:
    reservoir = reservoir_for(2)
    reservoir.add(ADA, Step(0), 1.0, "a0")
    reservoir.add(ADA, Step(1), 1.0, "a1")
    reservoir.add(BOB, Step(0), 1.0, "b0")

    reservoir.leave(BOB, Step(1))

    assert [len(c.contributions) for c in drained(reservoir)] == [2, 1]


def test_a_leave_keeps_what_was_pushed_before() -> None:
    reservoir = reservoir_for(2)
    reservoir.add(BOB, Step(0), 1.0, "b0")

    reservoir.leave(BOB, Step(0))
    reservoir.add(ADA, Step(0), 1.0, "a0")

    (complete,) = drained(reservoir)
    assert [c.payload for c in complete.contributions] == ["a0", "b0"]


def test_nothing_comes_out_when_all_have_left() -> None:
    reservoir = reservoir_for(1)
    reservoir.leave(ADA, Step(0))

    assert reservoir.take() is None
    assert reservoir.missing() == ()


def test_a_push_for_a_passed_step_is_refused() -> None:
    reservoir = reservoir_for(1)
    reservoir.add(ADA, Step(0), 1.0, "a")
    drained(reservoir)

    with pytest.raises(StepPassedError) as caught:
        reservoir.add(ADA, Step(0), 1.0, "again")
    assert (caught.value.rank, caught.value.step, caught.value.next_step) == (0, 0, 1)


def test_a_push_too_far_ahead_is_refused() -> None:
    reservoir = reservoir_for(1, max_ahead_steps=2)
    reservoir.check(ADA, Step(2), 1.0)

    with pytest.raises(StepTooEarlyError) as caught:
        reservoir.add(ADA, Step(3), 1.0, "a")
    error = caught.value
    assert (error.rank, error.step, error.next_step, error.max_ahead_steps) == (0, 3, 0, 2)


def test_a_second_push_of_a_step_is_refused() -> None:
    reservoir = reservoir_for(2)
    reservoir.add(ADA, Step(0), 1.0, "a")

    with pytest.raises(PushRepeatedError) as caught:
        reservoir.add(ADA, Step(0), 1.0, "other")
    assert (caught.value.rank, caught.value.step) == (0, 0)


def test_a_push_by_one_who_left_is_refused() -> None:
    reservoir = reservoir_for(2)
    reservoir.leave(BOB, Step(0))

    with pytest.raises(NotAMemberError):
        reservoir.add(BOB, Step(0), 1.0, "b")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_no_mean_can_use_is_refused(weight: float) -> None:
    with pytest.raises(BadWeightError) as caught:
        reservoir_for(1).add(ADA, Step(0), weight, "a")
    assert (caught.value.rank, caught.value.step) == (0, 0)


@given(st.integers(1, 4), st.lists(st.integers(0, 5), min_size=4, max_size=4), st.randoms())
def test_the_steps_that_come_out_do_not_depend_on_the_order_of_arrival(
    num_workers: int, lives: list[int], dice: random.Random
) -> None:
    lives = lives[:num_workers]
    reservoir = reservoir_for(num_workers, max_ahead_steps=5)
    events = [(r, s, "push") for r, life in enumerate(lives) for s in range(life)]
    events += [(r, life, "leave") for r, life in enumerate(lives)]
    dice.shuffle(events)

    out = []
    for rank, step, kind in events:
        if kind == "push":
            reservoir.add(Rank(rank), Step(step), 1.0, f"{rank}.{step}")
        else:
            reservoir.leave(Rank(rank), Step(step))
        out += drained(reservoir)

    assert [c.step for c in out] == list(range(max(lives)))
    for complete in out:
        expected = [
            f"{r}.{complete.step}" for r, life in enumerate(lives) if complete.step < life
        ]
        assert [c.payload for c in complete.contributions] == expected
        assert all(a.rank < b.rank for a, b in pairwise(complete.contributions))


def test_the_next_step_of_a_worker_is_the_first_that_it_has_not_pushed() -> None:
    reservoir = reservoir_for(2)
    assert reservoir.next_of(Rank(0)) == 0
    reservoir.add(Rank(0), Step(0), 1.0, "a0")
    reservoir.add(Rank(0), Step(1), 1.0, "a1")
    assert (reservoir.next_of(Rank(0)), reservoir.next_of(Rank(1))) == (2, 0)
    reservoir.leave(Rank(0), Step(1))
    assert reservoir.next_of(Rank(0)) == 1, "where it left"


def test_what_is_dropped_of_a_worker_counts_no_more() -> None:
    reservoir = reservoir_for(2)
    for step in (0, 1):
        reservoir.add(Rank(1), Step(step), 1.0, f"b{step}")
    assert reservoir.in_progress() == (1,)

    assert reservoir.drop(Rank(1), Step(1)) == ["b1"]
    assert reservoir.drop(Rank(1), Step(1)) == []
    reservoir.leave(Rank(1), Step(1))
    for step in (0, 1):
        reservoir.add(Rank(0), Step(step), 1.0, f"a{step}")

    taken = [[part.payload for part in step.contributions] for step in drained(reservoir)]
    assert taken == [["a0", "b0"], ["a1"]]
