"""How far async steps with a gradient."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from paramfleet_pserver.core.pacing import (
    Pace,
    RateGuard,
    Stride,
    guard_facts,
    is_guarded,
    pace_of,
)
from paramfleet_shared.tables.spec import OptimizerSpec

Rule = Literal["sgd", "momentum", "adagrad", "adam"]
RULES: tuple[Rule, ...] = ("sgd", "momentum", "adagrad", "adam")
SGD = OptimizerSpec(rule="sgd")
WHOLE = Pace(2, 0.0)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
def test_the_rate_begins_as_its_nth_part_and_grows_to_the_whole(rule: Rule) -> None:
    spec = OptimizerSpec(rule=rule, momentum=0.9 if rule == "momentum" else 0.0)

    shares = [pace_of(spec, update=update, workers=4).share for update in (1, 13, 25, 48, 49)]

    # 48 = 12 x 4 updates; after 12 and 24 of them the power is 3/4 and 1/2.
    expected = [1 / 4, 4**-0.75, 1 / 2, 4 ** -(1 / 48), 1.0]
    assert shares == pytest.approx(expected, rel=1e-12)
    assert shares[-1] == 1.0
    assert pace_of(spec, update=10_000, workers=4).share == 1.0


def test_adam_has_its_whole_rate_from_the_start() -> None:
    assert pace_of(OptimizerSpec(rule="adam"), update=1, workers=16).share == 1.0


@pytest.mark.parametrize("update", [1, 2, 500])
def test_one_worker_has_the_whole_rate(update: int) -> None:
    assert pace_of(SGD, update=update, workers=1).share == 1.0


def test_what_steps_as_far_as_its_gradient_is_long_is_guarded() -> None:
    guarded = [
        rule
        for rule in RULES
        if is_guarded(OptimizerSpec(rule=rule, momentum=0.9 if rule == "momentum" else 0.0))
    ]
    assert guarded == ["sgd", "momentum"]


def test_gradients_of_one_length_step_as_they_are() -> None:
    guard = RateGuard()
    assert {guard.stride(3.0, WHOLE) for _ in range(500)} == {Stride(1.0, 0.0)}


def test_a_long_gradient_is_shortened_to_twice_the_usual_length() -> None:
    guard = RateGuard()
    for _ in range(2):
        guard.stride(1.0, WHOLE)

    stride = guard.stride(16.0, WHOLE)

    # Squares: 4 times the usual 1 of 16. The present one is the mean, 6, which is more than 2.5
    # times the usual 1 + (4 - 1) / 3 = 2: the power rises by 2 / 2.
    assert stride == Stride(math.sqrt(4.0 / 16.0), 1.0)


@pytest.mark.parametrize("length", [10.0, 1e4, 1e8])
@pytest.mark.parametrize("workers", [2, 16])
def test_gradients_that_stay_long_are_the_usual_ones_soon(length: float, workers: int) -> None:
    guard, pace = RateGuard(), Pace(workers, 0.0)
    for _ in range(200):
        guard.stride(1.0, pace)

    strides = [guard.stride(length**2, pace) for _ in range(1_000 * workers)]

    num_short = sum(stride.scale < 1.0 for stride in strides)
    assert num_short <= max(32, 4 * workers) + 8  # and those before the present length is long
    powers = [stride.power for stride in strides]
    assert powers[num_short:] == sorted(powers[num_short:], reverse=True)
    assert powers[-1] < 0.01


def test_one_gradient_out_of_all_measure_does_not_set_what_is_usual() -> None:
    guard = RateGuard()
    for _ in range(200):
        guard.stride(1.0, WHOLE)
    for number in range(40):
        guard.stride(1e60 if number == 20 else 100.0, WHOLE)

    assert guard.stride(400.0 * 100.0, WHOLE).scale < 1.0


def test_the_power_rises_by_the_number_of_workers_and_falls_slowly() -> None:
    guard, pace = RateGuard(), Pace(8, 0.0)
    for _ in range(64):
        guard.stride(1.0, pace)

    # The present square is the mean of about 8 updates: 1 + 35 / 8, which is enough at once.
    first = guard.stride(36.0, pace)
    second = guard.stride(36.0, pace)

    assert (first.power, second.power) == (0.25, 0.5)
    powers = [guard.stride(1.0, pace).power for _ in range(2_000)]
    assert max(powers) <= 1.0
    assert powers[-1] < 0.1
    assert powers[-500:] == sorted(powers[-500:], reverse=True)


def test_gradients_that_grow_without_end_are_kept_finite() -> None:
    guard = RateGuard()
    strides = [guard.stride(10.0**power, WHOLE) for power in range(0, 300, 3)]
    strides.append(guard.stride(math.inf, WHOLE))

    assert all(0.0 <= stride.scale <= 1.0 for stride in strides)
    assert strides[-1] == Stride(0.0, 1.0)
    assert guard.stride(1.0, WHOLE).scale == 1.0


def test_the_first_updates_of_the_workers_are_taken_whatever_their_length() -> None:
    guard = RateGuard()
    assert guard.stride(1.0, WHOLE).scale == 1.0
    assert guard.stride(1e9, WHOLE).scale == 1.0


def test_gradients_that_are_zero_at_first_dont_stop_those_that_follow() -> None:
    guard = RateGuard()
    for _ in range(10):
        guard.stride(0.0, WHOLE)
    assert guard.stride(4.0, WHOLE) == Stride(1.0, 0.0)


def test_delayed_sgd_that_diverges_at_its_whole_rate_comes_to_rest() -> None:
    """Minimize w^2 / 2 with a rate of 1/4 and gradients that are 8 updates old."""

    def train(*, guarded: bool) -> float:
        guard, workers, past = RateGuard(), 8, [1.0] * 9
        for update in range(1, 2_001):
            gradient = past[-9]
            pace = pace_of(SGD, update=update, workers=workers)
            stride = guard.stride(gradient**2, pace) if guarded else Stride(1.0, 0.0)
            past.append(past[-1] - 0.25 * pace.share_at(stride.power) * stride.scale * gradient)
        return abs(past[-1])

    assert train(guarded=False) > 1e10
    assert train(guarded=True) < 1.0


def test_workers_that_come_and_leave_change_nothing_while_gradients_stay_as_long() -> None:
    guard = RateGuard()
    counts = [2] * 100 + [16] * 100 + [1] * 100 + [3] * 100

    assert {guard.stride(3.0, Pace(count, 0.0)) for count in counts} == {Stride(1.0, 0.0)}


def test_delayed_sgd_that_diverges_once_more_workers_come_comes_to_rest() -> None:
    """Minimize w^2 / 2 with a rate of 1/4; gradients are as many updates old as workers."""

    def train(*, guarded: bool) -> float:
        guard, past = RateGuard(), [1.0] * 9
        for update in range(1, 2_101):
            workers = 2 if update <= 100 else 8
            gradient = past[-1 - workers] + 1e-3 * (-1) ** update  # a batch's own part
            pace = pace_of(SGD, update=update, workers=workers)
            stride = guard.stride(gradient**2, pace) if guarded else Stride(1.0, 0.0)
            past.append(past[-1] - 0.25 * pace.share_at(stride.power) * stride.scale * gradient)
        return max(map(abs, past[-200:]))

    assert train(guarded=False) > 1e10
    assert train(guarded=True) < 1.0


def test_what_guards_have_done_is_counted() -> None:
    calm, busy = RateGuard(), RateGuard()
    for _ in range(10):
        calm.stride(1.0, WHOLE)
        busy.stride(1.0, WHOLE)
    assert guard_facts([calm, busy]) == {"guarded": 20, "shortened": 0, "rate_power": 0.0}

    strides = [busy.stride(36.0, WHOLE) for _ in range(3)]

    assert guard_facts([calm, busy]) == {
        "guarded": 23,
        "shortened": sum(stride.scale < 1.0 for stride in strides),
        "rate_power": strides[-1].power,
    }
    assert guard_facts([]) == {"guarded": 0, "shortened": 0, "rate_power": 0.0}
