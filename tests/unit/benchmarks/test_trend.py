"""Whether memory grows, or is only restless."""

import numpy as np
import pytest

from soak import trend_of

SECONDS = np.arange(600.0)


def test_a_leak_under_noise_is_found() -> None:
    noise = np.random.default_rng(1).normal(0.0, 2.0, 600)

    trend = trend_of(SECONDS.tolist(), (300.0 + SECONDS / 60.0 + noise).tolist())

    assert trend.slope == pytest.approx(1.0, abs=trend.noise + 0.1)
    assert trend.is_growth


def test_restlessness_is_no_growth() -> None:
    noise = np.random.default_rng(2).normal(0.0, 2.0, 600)

    assert not trend_of(SECONDS.tolist(), (300.0 + noise).tolist()).is_growth


def test_what_the_start_takes_is_no_growth() -> None:
    filling = np.minimum(SECONDS, 100.0)  # within the warm-up

    trend = trend_of(SECONDS.tolist(), filling.tolist())

    assert trend.slope == pytest.approx(0.0, abs=1e-9)


def test_few_samples_tell_nothing() -> None:
    assert trend_of([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]).slope == 0.0
