"""When a GEO worker exchanges."""

from itertools import pairwise

import pytest

from paramfleet.training.modes.geo.periods import Periods


def ends(periods: Periods, steps: range) -> list[int]:
    return [step for step in steps if periods.is_due(step)]


def test_without_growth_every_multiple_ends_a_period() -> None:
    assert ends(Periods(k_steps=4, growth=0), range(1, 14)) == [4, 8, 12]


def test_a_period_is_a_share_of_the_steps_taken_until_it_is_whole() -> None:
    periods = Periods(k_steps=4, growth=3)

    assert ends(periods, range(1, 26)) == [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 24]


@pytest.mark.parametrize("growth", [1, 7, 40])
@pytest.mark.parametrize("k_steps", [1, 10, 400])
def test_nobody_goes_on_alone_for_more_than_its_share(k_steps: int, growth: int) -> None:
    found = ends(Periods(k_steps=k_steps, growth=growth), range(1, 20_001))

    assert found[0] == 1
    assert all(end - begin <= max(1, begin // growth) for begin, end in pairwise(found))
    assert all(end - begin <= k_steps for begin, end in pairwise(found))
    assert found[-2:] == [20_000 - k_steps, 20_000]


def test_one_that_comes_late_has_the_period_of_the_others() -> None:
    assert ends(Periods(k_steps=8, growth=5, step=30), range(31, 60)) == [36, 43, 48, 56]


def test_another_longest_period_holds_at_once() -> None:
    periods = Periods(k_steps=100, growth=0)
    assert ends(periods, range(1, 43)) == []

    periods.adjust(10)

    assert ends(periods, range(43, 75)) == [50, 60, 70]
