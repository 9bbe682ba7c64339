"""How far async steps with a gradient."""

from __future__ import annotations

import math

import pytest

from paramfleet_pserver.core.pacing import Pace, RateGuard, Stride, is_guarded, pace_of
from paramfleet_shared.tables.spec import OptimizerSpec

SGD = OptimizerSpec(rule="sgd")
WHOLE = Pace(2, 0.0)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
def test_the_rate_begins_as_its_nth_part_and_grows_to_the_whole(rule: str) -> None:
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
    rules = ("sgd", "momentum", "adagrad", "adam")
    guarded = [
        rule
        for rule in rules
        if is_guarded(OptimizerSpec(rule=rule, momentum=0.9 if rule == "momentum" else 0.0))
    ]
    assert guarded == ["sgd", "momentum"]


def test_gradients_of_one_length_step_as_they_are() -> None:
    guard = RateGuard()
    assert {guard.stride(3.0, WHOLE) for _ in range(500)} == {Stride(1.0, 1.0)}


def test_a_long_gradient_is_shortened_to_twice_the_usual_length() -> None:
    guard = RateGuard()
    for _ in range(2):
        guard.stride(1.0, WHOLE)

    stride = guard.stride(16.0, WHOLE)

    # Squares: 4 times the usual 1 of 16. The present one is 16 at once, of which more than 2.5
    # times the usual 1 + (4 - 1) / 3 = 2: the power rises by 2 / 2.
    assert stride == Stride(math.sqrt(4.0 / 16.0), 1 / 2)


def test_the_power_rises_by_the_number_of_workers_and_falls_slowly() -> None:
    guard, pace = RateGuard(), Pace(8, 0.0)
    for _ in range(64):
        guard.stride(1.0, pace)

    # The present square is the mean of about 4 updates: 1 + 8.75, which is enough at once.
    first = guard.stride(36.0, pace)
    second = guard.stride(36.0, pace)

    assert first.share == pytest.approx(8**-0.25)
    assert second.share == pytest.approx(8**-0.5)
    shares = [guard.stride(1.0, pace).share for _ in range(2_000)]
    assert min(shares) >= 1 / 8
    assert shares[-1] > 0.8
    assert shares[-500:] == sorted(shares[-500:])


def test_gradients_that_grow_without_end_are_kept_finite() -> None:
    guard = RateGuard()
    strides = [guard.stride(10.0**power, WHOLE) for power in range(0, 300, 3)]
    strides.append(guard.stride(math.inf, WHOLE))

    assert all(0.0 <= stride.scale <= 1.0 for stride in strides)
    assert strides[-1] == Stride(0.0, 1 / 2)
    assert guard.stride(1.0, WHOLE).scale == 1.0


def test_the_first_updates_of_the_workers_are_taken_whatever_their_length() -> None:
    guard = RateGuard()
    assert guard.stride(1.0, WHOLE).scale == 1.0
    assert guard.stride(1e9, WHOLE).scale == 1.0


def test_gradients_that_are_zero_at_first_dont_stop_those_that_follow() -> None:
    guard = RateGuard()
    for _ in range(10):
        guard.stride(0.0, WHOLE)
    assert guard.stride(4.0, WHOLE) == Stride(1.0, 1.0)


def test_delayed_sgd_that_diverges_at_its_whole_rate_comes_to_rest() -> None:
    """Minimize w^2 / 2 with a rate of 1/4 and gradients that are 8 updates old."""

    def train(*, guarded: bool) -> float:
        guard, workers, past = RateGuard(), 8, [1.0] * 9
        for update in range(1, 2_001):
            gradient = past[-9]
            pace = pace_of(SGD, update=update, workers=workers)
            stride = guard.stride(gradient**2, pace) if guarded else Stride(1.0, 1.0)
            past.append(past[-1] - 0.25 * stride.share * stride.scale * gradient)
        return abs(past[-1])

    assert train(guarded=False) > 1e10
    assert train(guarded=True) < 1.0
