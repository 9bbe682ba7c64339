"""What a worker measures of its own lead."""

import numpy as np
import pytest

from paramfleet.training.job import Staleness


def test_percentiles_are_those_of_all_samples() -> None:
    staleness = Staleness()
    leads = [0] * 90 + [3] * 9 + [50]
    for lead in leads:
        staleness.note(step=100 + lead, slowest=100)

    assert staleness.percentile(50) == 0
    assert staleness.percentile(99) == 3
    assert staleness.percentile(100) == 50
    assert staleness.last == 50


@pytest.mark.parametrize(("step", "slowest"), [(5, None), (5, 9)])
def test_nobody_behind_is_no_lead(step: int, slowest: int | None) -> None:
    staleness = Staleness()

    staleness.note(step=step, slowest=slowest)

    assert staleness.percentile(99) == 0
    assert np.isfinite(staleness.percentile(99))


def test_no_samples_are_no_lead() -> None:
    assert Staleness().percentile(99) == 0
    assert Staleness().last == 0
