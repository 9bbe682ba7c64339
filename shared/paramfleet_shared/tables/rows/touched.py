"""Which ids' rows changed or went since somebody asked last: ids, each kept once in the end.

A reader that follows a shard asks again and again, and reads the rows as they are then. So what
is kept is neither values nor an order, and many changes of one row cost that reader one.

A reader *settles* what was noted until then, and takes it some ids at a time; what is noted
meanwhile is for the next time. So a reader comes to an end however much changes, and each id is
looked at for its likes once.

n = ids of a call.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.partition import partition

__all__ = ["TouchedIds"]

MERGE_AT = 1 << 18
"""Ids that are kept before those that came several times are merged, at least."""


class TouchedIds:
    """The ids of one shard for one reader. Its owner's thread uses it."""

    def __init__(self) -> None:
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
    def num_settled(self) -> int:
        """Return how many may be taken."""
        return len(self._settled) - self._at

    def note(self, ids: NDArray[np.int64]) -> None:
        """Note ids, int64 [n], whose rows change, come or go; an id may occur many times."""
        if not len(ids):
            return
        self._pieces.append(np.array(ids, np.int64))
        self._num += len(ids)
        if self._num > self._merge_at:  # so that a silent reader costs 8 bytes an id, twice
            self._pieces = [_once(self._pieces)]
            self._num = len(self._pieces[0])
            self._merge_at = max(MERGE_AT, 2 * self._num)

    def settle(self) -> None:
        """Let all be taken that was noted until now."""
        if self._num:
            self._settled = _once([self._settled[self._at :], *self._pieces])
            self._pieces, self._num, self._at = [], 0, 0
            self._merge_at = MERGE_AT

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
