"""Rows that were asked for ahead, until they are used."""

import numpy as np

from paramfleet_shared.tables.disk.shards.fetched import FetchedRows
from paramfleet_shared.tables.rows.cold import ColdRows

CAPACITY = 4000


def use(fetched: FetchedRows, slots: np.ndarray) -> None:
    """Use rows, as a call does."""
    waits = fetched.waiting
    used = np.unique(slots[waits[slots] != 0])
    waits[used] = 0
    fetched.note_used(used.size, 0)


def test_requests_of_rows_that_are_always_in_memory_do_not_add_up() -> None:
    fetched = FetchedRows(10_000, ColdRows())
    random = np.random.default_rng(1)
    coming = random.integers(0, 2000, 500)
    fetched.note_found(coming, 0, CAPACITY)
    for _ in range(300):
        now, coming = coming, random.integers(0, 2000, 500)
        fetched.note_found(coming, 0, CAPACITY)
        use(fetched, now)

    assert fetched.waiting.any(), "one request is always ahead"
    assert fetched.num_remembered < 10_000


def test_rows_that_nobody_used_are_let_go_after_others_were_forgotten() -> None:
    fetched = FetchedRows(100_000, ColdRows())
    fetched.note_found(np.array([7]), 0, CAPACITY)
    for first in range(100, 20_000, 500):
        slots = np.arange(first, first + 500)
        fetched.note_found(slots, 10, CAPACITY)
        use(fetched, slots)
    assert fetched.waiting[7]

    fetched.age(2 * CAPACITY + 5, CAPACITY)

    assert fetched.waiting.size == 0
    assert fetched.num_remembered == 0


def test_requests_that_are_forgotten_in_part_keep_their_moments() -> None:
    fetched, random = FetchedRows(100_000, ColdRows()), np.random.default_rng(2)
    asked_at = np.full(100_000, -1)
    used = np.zeros(100_000, np.bool_)
    for moment in range(400):
        slots = np.arange(64 * moment, 64 * (moment + 1))
        fetched.note_brought(slots, moment)
        asked_at[slots], used[slots] = moment, False
        some = random.choice(slots, 48, replace=False)
        use(fetched, some)
        used[some] = True
    assert fetched.num_remembered < 400 * 64, "used ones were forgotten"

    for moment in range(0, 400, 40):
        fetched.age(moment + 2 * 10 + 1, 10)
        waits = np.flatnonzero(fetched.waiting)
        np.testing.assert_array_equal(waits, np.flatnonzero((asked_at > moment) & ~used))
