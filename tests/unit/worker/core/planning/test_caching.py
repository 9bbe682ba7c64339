"""Expected misses are those of simulated memory, in batches that Zipf's law draws."""

import numpy as np
import pytest
from tests.unit.shared.tables.disk.shards.test_residency import (
    BATCHES,
    CAPACITY,
    DRAWS,
    ROWS,
    batches,
    missed_share,
)

from paramfleet_shared.tables.disk.kernels.policies import sweep_hand
from paramfleet_worker.core.planning.caching import clock_misses, hottest_misses, unique_rows
from paramfleet_worker.core.planning.popularity import Popularity


def missed_by_a_clock(exponent: float) -> float:
    """Return which part of the unique ids a clock misses that gives each of them a place."""
    slot_of, row_at = np.full(ROWS, -1), np.zeros(CAPACITY, np.int64)
    was_used, is_live = np.zeros(CAPACITY, np.uint8), np.zeros(CAPACITY, np.uint8)
    used, hand, seen, missed = 0, 0, 0, 0
    for number, ids in enumerate(batches(exponent)):
        slots = slot_of[ids]
        was_used[slots[slots >= 0]] = 1
        new = ids[slots < 0]
        if number >= BATCHES // 2:
            seen, missed = seen + ids.size, missed + new.size
        free = np.arange(used, min(CAPACITY, used + new.size))
        used += free.size
        victims = np.empty(new.size - free.size, np.int64)
        hand = sweep_hand(was_used, is_live, np.zeros(0, np.uint8), hand, victims)
        slot_of[row_at[victims]] = -1
        taken = np.concatenate([victims, free])
        slot_of[new], row_at[taken] = taken, new
        is_live[taken], was_used[taken] = 1, 0
    return missed / seen


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.2])
def test_a_clock_misses_what_is_expected(exponent: float) -> None:
    popularity = Popularity.zipf(ROWS, exponent)

    expected = clock_misses(popularity, DRAWS, CAPACITY) / unique_rows(popularity, DRAWS)

    assert missed_by_a_clock(exponent) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_a_pserver_is_between_the_clock_and_the_hottest(exponent: float) -> None:
    popularity = Popularity.zipf(ROWS, exponent)
    unique = unique_rows(popularity, DRAWS)
    clock = clock_misses(popularity, DRAWS, CAPACITY) / unique
    hottest = hottest_misses(popularity, DRAWS, CAPACITY) / unique

    assert hottest < missed_share(CAPACITY, exponent) < clock


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
