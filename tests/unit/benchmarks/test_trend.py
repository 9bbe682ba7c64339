"""Whether memory grows, or is only restless."""

import numpy as np
import pytest

from trend import FASTEST, trend_of

SECONDS = np.arange(600.0)
LEAK = 0.2 / 60.0
"""MiB a second."""


def restless(seed: int, *, alike: float = 0.9, deviation: float = 0.1) -> np.ndarray:
    """Return samples around 300, each like the one before it."""
    chance = np.random.default_rng(seed).normal(0.0, deviation * (1 - alike**2) ** 0.5, 600)
    for place in range(1, 600):
        chance[place] += alike * chance[place - 1]
    return 300.0 + chance


def stairs(seed: int) -> np.ndarray:
    """Return samples that stay for half a minute on one of three steps."""
    return 300.0 + 0.1 * np.repeat(np.random.default_rng(seed).integers(0, 3, 20), 30)


@pytest.mark.parametrize("make", [restless, stairs])
def test_a_leak_of_a_fifth_of_a_mib_a_minute_is_found_every_time(make) -> None:  # type: ignore[no-untyped-def]  # two functions
    trends = [trend_of(SECONDS, make(seed) + LEAK * SECONDS) for seed in range(100)]

    assert all(trend.is_growth for trend in trends)
    assert np.median([trend.slope for trend in trends]) == pytest.approx(0.2, abs=0.02)
    assert np.mean([trend.low <= 0.2 <= trend.high for trend in trends]) >= 0.9


@pytest.mark.parametrize("make", [restless, stairs])
def test_restlessness_is_no_growth(make) -> None:  # type: ignore[no-untyped-def]  # two functions
    grow = [trend_of(SECONDS, make(seed)).is_growth for seed in range(200)]

    assert np.mean(grow) <= 0.05


def test_one_stair_doesnt_bend_the_slope() -> None:
    values = np.where(SECONDS < 330, 327.95, 328.18)

    trend = trend_of(SECONDS, values)

    assert trend.slope == trend.low == 0.0
    assert 0.0 < trend.rise < FASTEST
    assert not trend.is_growth


@pytest.mark.parametrize("stair_s", [60, 150, 300])
def test_a_leak_that_comes_in_stairs_is_found(stair_s: int) -> None:
    leaked = LEAK * stair_s * np.floor((SECONDS + 17.0) / stair_s)

    assert trend_of(SECONDS, 300.0 + leaked).is_growth


def test_a_slow_growth_without_noise_is_found() -> None:
    assert trend_of(SECONDS, 300.0 + 0.005 * SECONDS / 60.0).is_growth


def test_what_the_start_takes_is_no_growth() -> None:
    filling = np.minimum(SECONDS, 100.0)  # within the warm-up

    trend = trend_of(SECONDS, filling)

    assert trend.slope == pytest.approx(0.0, abs=1e-9)
    assert not trend.is_growth


def test_what_shrinks_doesnt_grow() -> None:
    trend = trend_of(SECONDS, restless(1) - LEAK * SECONDS)

    assert trend.high < 0
    assert not trend.is_growth


def test_few_samples_tell_nothing() -> None:
    trend = trend_of([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])

    assert (trend.slope, trend.is_growth) == (0.0, False)
