"""Parts of all keys, by their hashes: a key is in the same one wherever its row is.

A range is some of the numbers that the last bits of a hash can make. They name the groups of
pages, too, so a range is read from pages that are beside each other; with more groups than
numbers it is some such runs, and with fewer what is on its pages is sifted.

A place is a bound of ranges as one number: how many bits are meant, and a number of these bits.
0 is the first one, whatever bits are meant.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.pages import within
from paramfleet_shared.tables.disk.pages.geometry import Geometry

__all__ = ["END", "KeyRange", "place_after"]

_NUMBER_BITS = 48
_NUMBER = (1 << _NUMBER_BITS) - 1
_MOST_BITS = _NUMBER_BITS - 1

END = (_MOST_BITS + 1) << _NUMBER_BITS
"""The place behind all keys."""

_MOST_PAGES = 4
"""Of a group."""


def place_after(start: int, share: float, bits: int) -> int:
    """Return the place behind a part of all keys.

    Args:
        start: Where it begins.
        share: How much of all keys it is to have, about.
        bits: Those that are meant from now on, if it begins with the first place.
    """
    meant = min(bits, _MOST_BITS) if not start else min(start >> _NUMBER_BITS, _MOST_BITS)
    most = 1 << meant
    number = (start & _NUMBER) + max(1, int(min(1.0, share) * most))
    return END if start >= END or number >= most else meant << _NUMBER_BITS | number


class KeyRange(NamedTuple):
    """The keys whose hashes end with one of some numbers."""

    bits: int
    first: int
    last: int
    """The number behind the last one."""
    salt: int
    """Of the hash."""

    @classmethod
    def of(cls, start: int, stop: int, salt: int) -> "KeyRange":
        """Return the keys between two places, the second of ``place_after`` or ``END``."""
        bound = start if stop >= END else stop
        bits = min(bound >> _NUMBER_BITS, _MOST_BITS)
        last = 1 << bits if stop >= END else stop & _NUMBER
        return cls(bits, last if start >= END else start & _NUMBER, last, salt)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which of keys, uint64 [n], are in it, in order: int64 [m]."""
        where = np.empty(keys.size, np.int64)
        numbers = ((1 << self.bits) - 1, self.first, self.last)
        return where[: within(keys, np.uint64(self.salt), numbers, where)]

    def pages(self, geometry: Geometry) -> NDArray[np.int64]:
        """Return the pages that it is on, sorted: int64 [n]."""
        groups, num = geometry.groups, 1 << self.bits
        if groups >= num:
            numbers = np.arange(self.first, self.last)
            own = (num * np.arange(groups // num)[:, None] + numbers).reshape(-1)
        else:
            numbers = self.first + np.arange(min(self.last - self.first, groups))
            own = np.sort(numbers & (groups - 1))
        pages = (groups * np.arange(_MOST_PAGES)[:, None] + own).reshape(-1)
        return pages[pages < geometry.pages]
