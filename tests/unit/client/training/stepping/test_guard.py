"""Which losses and gradients are out of range: the core."""

import math
from typing import Any

import pytest

from paramfleet.config.plans.guards import GuardPlan
from paramfleet.training.stepping.guard import Guard, RunningMean


def words_of(guard: Guard, loss: float | None, norm: float = 1.0) -> str:
    found = guard.judge(loss, norm)
    return "" if found is None else found.words()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_always_outside(value: float) -> None:
    guard = Guard(GuardPlan())

    assert words_of(guard, value).startswith("the loss is ")
    assert words_of(guard, 1.0, abs(value)).endswith("and must be a finite number")
    assert words_of(guard, None, 1e30) == ""


@pytest.mark.parametrize(
    ("plan", "loss", "norm", "expected"),
    [
        ({"loss_min": 0.0}, -0.1, 1.0, "the loss is -0.1, and must be at least 0"),
        ({"loss_max": 2.0}, 2.5, 1.0, "the loss is 2.5, and must be at most 2"),
        ({"loss_min": 0.0, "loss_max": 2.0}, 2.0, 1.0, ""),
        ({"grad_norm_max": 5.0}, 1.0, 6.0, "the gradient's norm is 6, and must be at most 5"),
        ({"grad_norm_max": 5.0}, None, 5.0, ""),
    ],
)
def test_absolute_ranges(plan: Any, loss: float, norm: float, expected: str) -> None:
    assert words_of(Guard(GuardPlan(**plan)), loss, norm) == expected


def test_relative_ranges_count_after_some_steps_and_follow_the_mean() -> None:
    guard = Guard(GuardPlan(loss_times=3.0, grad_norm_times=2.0, warm_up=4, window=10))
    for _ in range(2):
        assert words_of(guard, 1.0, 1.0) == ""
        assert words_of(guard, -7.0, 5.0) == "", "not yet"

    assert words_of(guard, -13.0) == (
        "the loss is -13, and must be at most 3 times the mean of 4 in size"
    )
    assert words_of(guard, 11.0, 6.5) == (
        "the gradient's norm is 6.5, and must be at most 2 times the mean of 3"
    )
    for _ in range(100):  # what is outside moves no mean
        words_of(guard, 10.0, 5.9)
    assert words_of(guard, 13.0, 11.0) == ""


def test_a_mean_is_plain_at_first_and_fades_then() -> None:
    mean = RunningMean(4)

    for value in (1.0, 2.0, 3.0, 6.0):
        mean.add(value)
    assert mean.value == 3.0
    mean.add(7.0)

    assert mean.value == 4.0


def test_more_than_so_many_in_a_row_are_too_many() -> None:
    guard = Guard(GuardPlan(action="skip", max_skips=2))
    told = []
    for loss in (math.nan, math.nan, 1.0, math.nan, math.nan, math.nan):
        guard.judge(loss, 1.0)
        told.append(guard.is_beyond)

    assert told == [False, False, False, False, False, True]
    endless = Guard(GuardPlan(action="skip", max_skips=0))
    for _ in range(500):
        endless.judge(math.nan, 1.0)
    assert not endless.is_beyond
