"""Rows that were brought into memory before they are needed, until they are used or leave.

S = slots of rows, n = rows of a call.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.policies import BROUGHT, FOUND
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.rows.cold import ColdRows
from paramfleet_shared.values.sorting import each_once

__all__ = ["FETCHED_SHARE", "NONE_WAITS", "SLICE_S", "FetchSlice", "FetchedRows"]

FETCHED_SHARE, MOST_WAITING = 0.5, 0.75
"""Of the rows that fit, so many at most are those that came and wait for their use; and so many
those that wait, with those that were there. The rest is for what goes on."""

SLICE_S = 0.005
"""Seconds that a slice of ids is to take: others wait for it."""

_PATIENCE = 2
"""A row that nobody uses waits until so many times as many others came as fit into memory."""

_LEAST_REMEMBERED = 4096
"""So many rows of requests are remembered without a look at which of them wait."""

_FIRST, _LEAST, _MOST = 64, 8, 2048

NONE_WAITS = np.zeros(0, np.uint8)


class FetchedRows:
    """Which rows in memory wait for their first use. One thread uses it.

    Args:
        max_slots: No slot is as high.
        cold: Counts of the shard.
    """

    def __init__(self, max_slots: int, cold: ColdRows) -> None:
        self._waits = reserve(max_slots, np.uint8)
        """Of each slot: ``BROUGHT``, ``FOUND``, or 0."""
        self._cold = cold
        self._asked: deque[tuple[NDArray[np.int64], int]] = deque()
        """Slots in the order in which they were asked for, and how many rows had come then."""
        self._num_remembered = 0
        """Rows of all that were asked for."""
        self._num_waiting = 0
        self._num_brought = 0
        """Those of them that came for it."""

    @property
    def num_remembered(self) -> int:
        """Return how many rows of requests are remembered; little more than wait."""
        return self._num_remembered

    @property
    def waiting(self) -> NDArray[np.uint8]:
        """Return which rows wait, uint8 [S]; [0] if none does."""
        return self._waits if self._num_waiting else NONE_WAITS

    def room(self, capacity: int) -> int:
        """Return how many more rows may come and wait, if so many fit into memory."""
        return max(0, int(capacity * FETCHED_SHARE) - self._num_brought)

    def age(self, num_came: int, capacity: int) -> None:
        """Let rows wait no more that have waited for too long.

        Args:
            num_came: Rows that have come to memory, of all that ever came.
            capacity: Rows that fit.
        """
        while self._asked and num_came - self._asked[0][1] > _PATIENCE * capacity:
            slots = self._asked.popleft()[0]
            self._num_remembered -= slots.size
            self._let_go(slots)

    def note_brought(self, slots: NDArray[np.int64], num_came: int) -> None:
        """Note rows that came for later: int64 [n], each once.

        Args:
            slots: They.
            num_came: As of ``age``.
        """
        self._waits[slots] = BROUGHT
        self._num_waiting += slots.size
        self._remember(slots, num_came)
        self._num_brought += slots.size
        self._cold.prefetched += slots.size

    def note_found(self, slots: NDArray[np.int64], num_came: int, capacity: int) -> None:
        """Note rows that were there when they were asked for, as long as few enough wait.

        Args:
            slots: int64 [n]; one may be there many times, and may wait already.
            num_came: As of ``age``.
            capacity: The same.
        """
        room = max(0, int(capacity * MOST_WAITING) - self._num_waiting)
        new = each_once(slots[self._waits[slots] == 0])[:room]
        self._waits[new] = FOUND
        self._num_waiting += new.size
        self._remember(new, num_came)

    def note_used(self, num: int, num_brought: int) -> None:
        """Note that so many rows were used, and wait no more by ``waiting``.

        Args:
            num: How many.
            num_brought: Those of them that had come.
        """
        self._cold.prefetched_used += num_brought
        self._count_out(num, num_brought)

    def note_gone(self, slots: NDArray[np.int64]) -> None:
        """Note rows that are in memory no more: int64 [n]."""
        if self._num_waiting:
            self._let_go(slots)

    def _remember(self, slots: NDArray[np.int64], num_came: int) -> None:
        """Note what was asked for; used rows are forgotten once they are most of all."""
        if slots.size:
            self._asked.append((slots, num_came))
            self._num_remembered += slots.size
        if self._num_remembered > 2 * self._num_waiting + _LEAST_REMEMBERED:
            self._forget_used()

    def _forget_used(self) -> None:
        """Forget rows that wait no more, and of those that do all requests but the last."""
        slots = np.concatenate([each for each, _ in self._asked])
        request = np.repeat(np.arange(len(self._asked)), [each.size for each, _ in self._asked])
        waits = np.flatnonzero(self._waits[slots] != 0)[::-1]  # the last request first
        last = waits[np.unique(slots[waits], return_index=True)[1]]
        asked = list(self._asked)
        self._asked.clear()
        last.sort()  # each request's own are beside each other then
        numbers, firsts = np.unique(request[last], return_index=True)
        parts = np.split(slots[last], firsts[1:])
        for number, own in zip(numbers.tolist(), parts, strict=False):  # none has no number
            self._asked.append((own, asked[number][1]))
        self._num_remembered = last.size

    def _let_go(self, slots: NDArray[np.int64]) -> None:
        """Let rows wait no more."""
        waited = each_once(slots[self._waits[slots] != 0])
        num_brought = int(np.count_nonzero(self._waits[waited] == BROUGHT))
        self._waits[waited] = 0
        self._count_out(waited.size, num_brought)

    def _count_out(self, num: int, num_brought: int) -> None:
        self._num_waiting -= num
        self._num_brought -= num_brought
        if not self._num_waiting:
            self._asked.clear()
            self._num_remembered = 0


class FetchSlice:
    """How many ids are looked for on disk before others have their turn."""

    def __init__(self) -> None:
        self.num = _FIRST

    def note(self, seconds: float, *, is_whole: bool) -> None:
        """Note how long a slice took.

        Args:
            seconds: It, without what left memory for the rows that came: a step of a merge
                takes as long whatever the slice is.
            is_whole: Whether it was one of ``num`` ids, and not the rest of a request.
        """
        if seconds > SLICE_S:
            self.num = max(_LEAST, self.num // 2)
        elif is_whole and seconds < SLICE_S / 2:
            self.num = min(_MOST, self.num * 2)
