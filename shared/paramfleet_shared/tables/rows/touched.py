"""Which ids' rows changed or went since somebody asked last: ids, each kept once in the end.

A reader that follows a shard asks again and again, and reads the rows as they are then. So what
is kept is neither values nor an order, and many changes of one row cost that reader one.

A reader *settles* what was noted until then, and takes it some ids at a time; what is noted
meanwhile is for the next time. So a reader comes to an end however much changes, and each id is
looked at for its likes once.

What is kept may be *lost*: where there is no memory for it, or others need that. Then the
reader begins anew.

n = ids of a call.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.partition import partition

__all__ = ["TouchedIds"]

MERGE_AT = 1 << 18
"""Ids that are kept before those that came several times are merged, at least."""


_PEAK_BYTES = 32
"""Of an id while those that came several times are merged; it is kept in 8."""


class TouchedIds:
    """The ids of one shard for one reader. Its owner's thread uses all but ``lose``.

    Args:
        has_memory: Returns whether there is memory for so many bytes more; None if there always
            is.
    """

    def __init__(self, has_memory: Callable[[int], bool] | None = None) -> None:
        self._has_memory = has_memory
        self._sure = 0 if has_memory is not None else 1 << 62
        """So many ids may be kept without a question."""
        self.is_lost = False
        """Whether ids were lost: what it has isn't all, and it keeps no more."""
        self._settled = np.empty(0, np.int64)
        self._at = 0
        """How many of the settled ones were taken."""
        self._pieces: list[NDArray[np.int64]] = []
        self._num = 0
        """How many the pieces have; one may be counted several times."""
        self._merge_at = MERGE_AT

    def __len__(self) -> int:
        """Return how many ids are kept, at most."""
        return self.num_settled + self._num

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is kept."""
        return 8 * (len(self._settled) + self._num)

    def lose(self) -> None:
        """Keep nothing any more. Any thread may call it, and no other one waits for it.

        What the owner's thread is about to keep meanwhile goes with its next call.
        """
        self.is_lost = True
        self._forget()

    def _forget(self) -> None:
        self._settled, self._at = np.empty(0, np.int64), 0
        self._pieces, self._num = [], 0

    @property
    def num_settled(self) -> int:
        """Return how many may be taken."""
        return len(self._settled) - self._at

    def note(self, ids: NDArray[np.int64]) -> None:
        """Note ids, int64 [n], whose rows change, come or go; an id may occur many times."""
        if not len(ids):
            return
        if self.is_lost or not self._may_keep(len(self) + len(ids)):
            self.lose()
            return
        try:
            self._pieces.append(np.array(ids, np.int64))
            self._num += len(ids)
            if self._num > self._merge_at:  # a silent reader costs 8 bytes an id, twice
                self._pieces = [_once(self._pieces)]
                self._num = len(self._pieces[0])
                self._merge_at = max(MERGE_AT, 2 * self._num)
        except MemoryError:  # what trains doesn't end for that
            self.lose()

    def settle(self) -> None:
        """Let all be taken that was noted until now."""
        if self.is_lost:
            self._forget()
        elif self._num:
            try:
                self._settled = _once([self._settled[self._at :], *self._pieces])
            except MemoryError:
                self.lose()
            self._pieces, self._num, self._at = [], 0, 0
            self._merge_at = MERGE_AT

    def _may_keep(self, num: int) -> bool:
        """Return whether there is memory for so many ids, and some more."""
        if num <= self._sure:
            return True
        assert self._has_memory is not None, "else all are sure"
        most = num + max(MERGE_AT, num // 4)
        if not self._has_memory(_PEAK_BYTES * most - self.num_bytes):
            return False
        self._sure = most
        return True

    def take(self, most: int) -> NDArray[np.int64]:
        """Return at most so many of the settled ids, int64 [n]; they are kept no longer."""
        taken = self._settled[self._at : self._at + most]
        self._at += len(taken)
        if not self.num_settled:
            self._settled, self._at = np.empty(0, np.int64), 0
        return taken


def _once(pieces: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    ids, _, _ = partition(np.concatenate(pieces), 1)
    return ids
