"""Expected misses are those of the tier's own policies, told batches that Zipf's law drew."""

import numpy as np
import pytest
from tests.unit.shared.tables.disk.test_admission import CAPACITY, DRAWS, ROWS, missed_share

from paramfleet_shared.tables.disk.admission import ClockPolicy, SecondTouch, TinyLfu
from paramfleet_worker.core.planning.caching import clock_misses, hottest_misses, unique_rows
from paramfleet_worker.core.planning.popularity import Popularity


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.2])
def test_a_clock_misses_what_is_expected(exponent: float) -> None:
    popularity = Popularity.zipf(ROWS, exponent)

    expected = clock_misses(popularity, DRAWS, CAPACITY) / unique_rows(popularity, DRAWS)

    assert missed_share(ClockPolicy(CAPACITY), exponent) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_policies_that_count_are_between_the_clock_and_the_hottest(exponent: float) -> None:
    popularity = Popularity.zipf(ROWS, exponent)
    unique = unique_rows(popularity, DRAWS)
    clock = clock_misses(popularity, DRAWS, CAPACITY) / unique
    hottest = hottest_misses(popularity, DRAWS, CAPACITY) / unique

    for policy in (SecondTouch(CAPACITY), TinyLfu(CAPACITY)):
        assert hottest < missed_share(policy, exponent) < clock


def test_the_hottest_rows_miss_what_is_drawn_beside_them() -> None:
    rng, exponent = np.random.default_rng(5), 1.05
    weights = np.cumsum(np.arange(1, ROWS + 1) ** -exponent)
    drawn = [
        np.unique(np.searchsorted(weights, rng.random(DRAWS) * weights[-1])) for _ in range(50)
    ]
    popularity = Popularity.zipf(ROWS, exponent)

    assert np.mean([ids.size for ids in drawn]) == pytest.approx(
        unique_rows(popularity, DRAWS), rel=0.02
    )
    assert np.mean([(ids >= CAPACITY).sum() for ids in drawn]) == pytest.approx(
        hottest_misses(popularity, DRAWS, CAPACITY), rel=0.05
    )


def test_memory_for_all_rows_misses_none_and_none_misses_all() -> None:
    popularity = Popularity.zipf(ROWS, 1.05)

    assert clock_misses(popularity, DRAWS, ROWS) == 0
    assert hottest_misses(popularity, DRAWS, ROWS) == 0
    assert clock_misses(popularity, DRAWS, 0) == unique_rows(popularity, DRAWS)
    assert clock_misses(popularity, DRAWS, ROWS - 1) < 1.0
    places = [clock_misses(popularity, DRAWS, n) for n in (1, 100, 1_000, 50_000)]
    assert places == sorted(places, reverse=True)
