"""The rows of one table as of a base: sorted ids and rows, mapped or in memory, never changed.

Shape legend: n = rows of the base, D = width of a row, q = ids of a call.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["BaseRows"]

_IDS_A_BUCKET_BITS = 2
"""Ids share a bucket of the directory with so many (2 ** bits), were they spread evenly."""


@final
class BaseRows:
    """Finds the places of ids.

    A directory over the ids' range says where each of its equal parts begins, so that of a
    search few steps are left, and few lines of memory are touched: one of the directory, and
    one or two of the ids. Where ids crowd in a few parts, the search there is longer.

    Args:
        ids: int64 [n], sorted, each once.
        rows: float32 [n, D].
    """

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        self.ids = ids
        self.rows = rows
        self._lowest = self._highest = np.int64(0)
        self._shift = np.uint64(0)
        self._starts = np.zeros(2, np.int64)
        self._steps = 0
        if len(ids):
            self._make_directory()

    @property
    def num_bytes(self) -> int:
        """Return the memory that the directory takes."""
        return self._starts.nbytes

    def find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where ids are, int64 [q], and which are there, bool [q]; others are at any."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        inside = np.minimum(np.maximum(ids, self._lowest), self._highest)
        bucket = (inside - self._lowest).view(np.uint64) >> self._shift
        bucket = bucket.view(np.int64)
        place, last = self._starts.take(bucket), self._starts.take(bucket + 1)
        for _ in range(self._steps):
            middle = (place + last) >> 1
            is_above = self.ids.take(middle, mode="clip") > inside
            last = np.where(is_above, middle, last)
            place = np.where(is_above, place, middle)
        place = np.minimum(place, len(self.ids) - 1)
        return place, self.ids.take(place) == ids

    def _make_directory(self) -> None:
        self._lowest, self._highest = self.ids[0], self.ids[-1]
        width = int(self._highest) - int(self._lowest)
        wanted_bits = max(0, len(self.ids).bit_length() - _IDS_A_BUCKET_BITS)
        shift = max(0, width.bit_length() - wanted_bits)
        self._shift = np.uint64(shift)
        num_buckets = (width >> shift) + 1
        firsts = (np.arange(num_buckets, dtype=np.uint64) << self._shift).view(np.int64)
        with np.errstate(over="ignore"):
            firsts += self._lowest  # wraps around as the differences do
        starts = np.searchsorted(self.ids, firsts)
        self._starts = np.append(starts, len(self.ids)).astype(np.int64)
        most = int(np.diff(self._starts).max())
        self._steps = most.bit_length()
