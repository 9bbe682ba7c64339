"""Which ids' rows changed or went since somebody asked last: ids, each kept once in the end.

A reader that follows a shard asks again and again, and reads the rows as they are then. So what
is kept is neither values nor an order, and many changes of one row cost that reader one.

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
        self._pieces: list[NDArray[np.int64]] = []
        self._num = 0
        self._merge_at = MERGE_AT

    def __len__(self) -> int:
        """Return how many ids are kept; one may be counted several times."""
        return self._num

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

    def take(self, most: int) -> NDArray[np.int64]:
        """Return at most so many of the ids, int64 [n], each once; they are kept no longer."""
        if not self._num:
            return np.empty(0, np.int64)
        ids = _once(self._pieces)
        taken, left = ids[:most], ids[most:]
        self._pieces, self._num = [], 0
        self._merge_at = MERGE_AT
        if len(left):
            self.note(left)
        return taken


def _once(pieces: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    ids, _, _ = partition(np.concatenate(pieces), 1)
    return ids
