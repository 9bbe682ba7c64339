"""The log's keys by where their pages are, so that a merge has many keys of few pages."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.logging import split_keys
from paramfleet_shared.tables.disk.pages.header import TierState

__all__ = ["Split"]


class Split(NamedTuple):
    """A division of all keys into ranges of groups of pages."""

    salt: int
    mask: int
    """The bits of a key's hash that say which group it is of."""
    shift: int
    """Those of them that don't say which range."""
    num: int
    """Ranges: a power of two."""

    @classmethod
    def of(cls, state: TierState, num: int) -> "Split":
        """Return the one for the pages that there are."""
        groups = max(num, state.groups)
        shift = groups.bit_length() - num.bit_length()
        return cls(state.salt, groups - 1, shift, num)

    def order(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], list[int]]:
        """Return keys, uint64 [n], by ranges, and where each range ends: [n] and [num].

        Those of a range stay in the order in which they were.
        """
        order = np.empty(keys.size, np.uint32)
        ends = np.zeros(self.num + 1, np.int64)
        split_keys(keys, np.uint64(self.salt), (self.mask, self.shift), order, ends)
        return order, ends[: self.num].tolist()
