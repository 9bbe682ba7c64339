"""Which rows stay in memory: simulated batches whose ids are drawn by Zipf's law."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.shards.residency import WINDOW_SHARE, Residency

ROWS, CAPACITY, DRAWS, BATCHES = 100_000, 10_000, 4_000, 160

CLOCK_SHARES = {1.05: 0.4496, 1.2: 0.3017}
"""What a clock misses of the same batches, which gives each row a place that was missed."""


def batches(exponent: float) -> Iterator[NDArray[np.int64]]:
    """Yield each batch's ids, each once: rank 0 is drawn most often."""
    rng = np.random.default_rng(3)
    weights = np.cumsum(np.arange(1, ROWS + 1) ** -exponent)
    for _ in range(BATCHES):
        yield np.unique(np.searchsorted(weights, rng.random(DRAWS) * weights[-1]))


class Memory:
    """Slots as a shard has them: a row that comes takes one, which is free when it leaves."""

    def __init__(self, capacity: int) -> None:
        most = ROWS + 1
        self.residency = Residency(most)
        self.capacity = capacity
        self.slot_of = np.full(ROWS, -1)
        self.keys = np.zeros(most, np.uint64)
        self._free = list(range(most))

    def use(self, ids: NDArray[np.int64]) -> int:
        """Have rows in memory for a moment; return how many weren't."""
        flags = np.full(ROWS + 1, 3, np.uint8)
        slots = self.slot_of[ids]
        none_waits = np.zeros(0, np.uint8)
        missing, _, _ = self.residency.touch(
            ids.astype(np.uint64), slots, (flags, 1, none_waits)
        )
        new = ids[slots < 0]
        assert np.array_equal(missing, new.astype(np.uint64))
        assert np.array_equal(np.flatnonzero(flags == 1), np.sort(slots[slots >= 0]))
        slots = np.array([self._free.pop() for _ in range(new.size)], np.int64)
        self.slot_of[new], self.keys[slots] = slots, new
        self.residency.enter(slots)
        over = self.residency.num_rows - self.capacity
        if over > 0:
            main = int(self.capacity * (1 - WINDOW_SHARE))
            gone = self.residency.leaving(over, main, self.keys)
            assert len(np.unique(gone)) == over
            self.slot_of[self.keys[gone].astype(np.int64)] = -1
            self._free += gone.tolist()
        assert self.residency.num_rows == int((self.slot_of >= 0).sum()) <= self.capacity
        return int(new.size)


def test_rows_that_come_and_go_leave_nothing_behind() -> None:
    residency, slots = Residency(3000), np.arange(2000)
    residency.enter(np.arange(2000, 3000))

    before = 0
    tracemalloc.start()
    for turn in range(300):
        if turn == 100:
            before, _ = tracemalloc.get_traced_memory()
        residency.enter(slots[turn % 3 :].copy())
        residency.drop(slots[turn % 3 :])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 1 << 20
    assert residency.num_rows == 1000
    assert residency.num_entered == 1000 + 300 * 2000 - 300
    keys = np.arange(3000, dtype=np.uint64)
    assert residency.leaving(5, 1, keys).tolist() == [2001, 2002, 2003, 2004, 2005]


def missed_share(capacity: int, exponent: float) -> float:
    """Return which part of the unique ids isn't in memory, in the later half of the batches."""
    memory, seen, missed = Memory(capacity), 0, 0
    for number, ids in enumerate(batches(exponent)):
        num = memory.use(ids)
        if number >= BATCHES // 2:
            seen, missed = seen + ids.size, missed + num
    return missed / seen


@pytest.mark.parametrize("exponent", [1.05, 1.2])
def test_fewer_rows_are_missed_than_by_a_clock(exponent: float) -> None:
    later = np.concatenate(list(batches(exponent))[BATCHES // 2 :])
    hottest = float(np.mean(later >= CAPACITY))

    share = missed_share(CAPACITY, exponent)

    assert hottest < share < 0.95 * CLOCK_SHARES[exponent], (hottest, share)


def test_what_comes_stays_until_as_many_have_come_after_it() -> None:
    memory = Memory(100)
    memory.use(np.arange(100))

    for step in range(10):
        ids = 200 + 2 * step + np.arange(2)
        memory.use(ids)
        assert memory.use(ids) == 0, "the gradients of what was read"


def test_a_row_that_is_used_often_is_driven_out_by_no_row_that_is_used_once() -> None:
    memory = Memory(100)
    often = np.arange(50)
    for _ in range(8):
        memory.use(often)

    missed = 0
    for step in range(60):
        memory.use(1000 + 20 * step + np.arange(20))
        missed += memory.use(often)

    assert missed == 0


def test_memory_may_become_smaller_than_a_part_of_it() -> None:
    memory = Memory(100)
    for step in range(20):
        memory.use(10 * step + np.arange(30))
    memory.capacity = 7

    memory.use(np.arange(500, 503))

    assert memory.residency.num_rows == 7


def test_what_comes_stays_for_a_while_also_when_memory_has_become_smaller() -> None:
    memory = Memory(1000)
    for _ in range(3):
        for first in range(0, 1200, 100):
            memory.use(first + np.arange(100))
    memory.capacity = 800  # below what was among the main rows

    memory.use(np.arange(3000, 3100))  # which brings it down to that

    for step in range(20):
        ids = 5000 + 10 * step + np.arange(10)
        memory.use(ids)
        assert memory.use(ids) == 0, "the gradients of what was read"
    most = int(800 * (1 - WINDOW_SHARE))
    assert memory.residency.num_main == most


def test_rows_that_were_removed_leave_no_more() -> None:
    residency = Residency(100)
    slots = np.arange(50)
    residency.enter(slots)
    residency.leaving(10, 30, np.arange(100, dtype=np.uint64))
    rest = residency.num_rows
    assert rest == 40

    gone = np.concatenate([np.arange(20), np.arange(40, 45)])
    residency.drop(gone)
    residency.enter(gone[:5])
    left = residency.leaving(100, 0, np.arange(100, dtype=np.uint64))

    assert residency.num_rows == 0
    assert len(np.unique(left)) == len(left) == rest - 25 + 5
