"""Rows that were brought into memory before they are needed, until they are used or leave.

S = slots of rows, n = rows of a call.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.rows.cold import ColdRows
from paramfleet_shared.values.sorting import each_once

__all__ = ["FETCHED_SHARE", "SLICE_S", "FetchSlice", "FetchedRows"]

FETCHED_SHARE = 0.5
"""Of the rows that fit, so many at most wait for their use; the rest is for what goes on."""

SLICE_S = 0.005
"""Seconds that a slice of ids is to take: others wait for it."""

_PATIENCE = 2
"""A row that nobody uses waits until so many times as many others came as fit into memory."""

_FIRST, _LEAST, _MOST = 64, 8, 2048


class FetchedRows:
    """Which rows in memory wait for their first use. One thread uses it.

    Args:
        max_slots: No slot is as high.
        cold: Counts of the shard.
    """

    def __init__(self, max_slots: int, cold: ColdRows) -> None:
        self._is_waiting = reserve(max_slots, np.bool_)
        self._cold = cold
        self._brought: deque[tuple[NDArray[np.int64], int]] = deque()
        """Slots in the order in which they were brought, and how many rows had come then."""
        self.num_waiting = 0

    @property
    def waiting(self) -> NDArray[np.bool_] | None:
        """Return which rows wait, bool [S]; None if none does."""
        return self._is_waiting if self.num_waiting else None

    def room(self, capacity: int) -> int:
        """Return how many more rows may wait, if so many fit into memory."""
        return max(0, int(capacity * FETCHED_SHARE) - self.num_waiting)

    def age(self, num_came: int, capacity: int) -> None:
        """Let rows wait no more that have waited for too long.

        Args:
            num_came: Rows that have come to memory, of all that ever came.
            capacity: Rows that fit.
        """
        while self._brought and num_came - self._brought[0][1] > _PATIENCE * capacity:
            self._let_go(self._brought.popleft()[0])

    def note_brought(self, slots: NDArray[np.int64], num_came: int) -> None:
        """Note rows that came for later: int64 [n], each once.

        Args:
            slots: They.
            num_came: As of ``age``.
        """
        self._is_waiting[slots] = True
        self._brought.append((slots, num_came))
        self.num_waiting += slots.size
        self._cold.prefetched += slots.size

    def note_used(self, slots: NDArray[np.int64]) -> None:
        """Note rows that are used: int64 [n], -1 for those that aren't in memory."""
        if self.num_waiting:
            self._cold.prefetched_used += self._let_go(slots[slots >= 0])

    def note_gone(self, slots: NDArray[np.int64]) -> None:
        """Note rows that are in memory no more: int64 [n]."""
        if self.num_waiting:
            self._let_go(slots)

    def _let_go(self, slots: NDArray[np.int64]) -> int:
        """Let rows wait no more; return how many did."""
        waited = each_once(slots[self._is_waiting[slots]])
        self._is_waiting[waited] = False
        self.num_waiting -= waited.size
        if not self.num_waiting:
            self._brought.clear()
        return int(waited.size)


class FetchSlice:
    """How many ids are looked for on disk before others have their turn."""

    def __init__(self) -> None:
        self.num = _FIRST

    def note(self, seconds: float, *, is_whole: bool) -> None:
        """Note how long a slice took.

        Args:
            seconds: It, with what left memory for the rows that came.
            is_whole: Whether it was one of ``num`` ids, and not the rest of a request.
        """
        if seconds > SLICE_S:
            self.num = max(_LEAST, self.num // 2)
        elif is_whole and seconds < SLICE_S / 2:
            self.num = min(_MOST, self.num * 2)
