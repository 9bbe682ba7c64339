"""Ids that have no row on disk: a shard that has just looked for one needn't look again.

An id that an entry doesn't admit has none. It is prefetched, pulled and pushed in each step in
which it occurs, and each of these would read its page.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.routing import mixed

__all__ = ["AbsentKeys"]

_SIZE = 1 << 17
"""1.2 MB: more ids than a step of a worker has, as a rule."""


class AbsentKeys:
    """Some of the keys without a row; of two that share a place, the later one. n = keys."""

    def __init__(self) -> None:
        self._keys = np.zeros(_SIZE, np.uint64)
        self._is_set = np.zeros(_SIZE, np.bool_)
        self._may_have = False

    def note(self, keys: NDArray[np.uint64]) -> None:
        """Note keys that were looked for in vain: uint64 [n]."""
        places = _places_of(keys)
        self._keys[places], self._is_set[places] = keys, True
        self._may_have |= keys.size > 0

    def forget(self, keys: NDArray[np.uint64]) -> None:
        """Note that keys have rows now: uint64 [n]."""
        if self._may_have:
            places = _places_of(keys)
            self._is_set[places[self._keys[places] == keys]] = False

    def others(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return those of some keys, uint64 [n], that may have a row."""
        if not self._may_have:
            return keys
        places = _places_of(keys)
        may_be: NDArray[np.bool_] = ~self._is_set[places] | (self._keys[places] != keys)
        return keys[may_be]


def _places_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (mixed(keys) & np.uint64(_SIZE - 1)).view(np.int64)
