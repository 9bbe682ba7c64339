"""Arrays of rows that come piece by piece, without keeping them twice."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet.data.parsing.parser import Block
from paramfleet.data.parsing.rows import Rows

__all__ = ["Store"]

A = TypeVar("A", bound=np.generic)

_GROWTH = 1.5


class Store:
    """Appends rows to arrays that grow; the system moves their pages, not their bytes.

    Args:
        num_slots: Of each row.
    """

    def __init__(self, num_slots: int) -> None:
        self._counts = _Column(np.int32, width=num_slots)
        self._ids = _Column(np.int64)
        self._floats = _Column(np.float32)
        self._id_starts = _Column(np.int64)
        self._float_starts = _Column(np.int64)
        self._pieces: list[tuple[int, int, int]] = []
        """Number of its file or sender, first row, rows."""
        self._id_starts.append(np.zeros(1, np.int64))
        self._float_starts.append(np.zeros(1, np.int64))

    def __len__(self) -> int:
        return self._counts.size

    def append_block(self, block: Block) -> None:
        """Append rows of a file; those of one file come in their order."""
        self.append(block.rows, place=block.file)

    def append(self, rows: Rows, *, place: int) -> None:
        """Append rows, whose place among all is that of this number."""
        if len(rows):
            self._pieces.append((place, len(self), len(rows)))
        self._id_starts.append(rows.id_starts[1:] + self._ids.size)
        self._float_starts.append(rows.float_starts[1:] + self._floats.size)
        self._counts.append(rows.counts)
        self._ids.append(rows.ids)
        self._floats.append(rows.floats)

    def finish(self) -> tuple[Rows, NDArray[np.int64]]:
        """Return all rows, and their numbers in the order of places; append no more."""
        pieces = sorted(self._pieces)
        parts = [np.arange(first, first + count) for _, first, count in pieces]
        order = np.concatenate([np.empty(0, np.int64), *parts])
        rows = Rows(
            counts=self._counts.finish(),
            ids=self._ids.finish(),
            floats=self._floats.finish(),
            id_starts=self._id_starts.finish(),
            float_starts=self._float_starts.finish(),
        )
        return rows, order


class _Column:
    """An array that grows at its end."""

    def __init__(self, dtype: type[np.generic], *, width: int = 0) -> None:
        self._width = width
        self._array: NDArray[Any] = np.empty(self._shape(0), dtype)
        self.size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Copy values behind those that are here."""
        size = self.size + len(values)
        if size > len(self._array):
            self._resize(max(size, int(len(self._array) * _GROWTH)))
        self._array[self.size : size] = values
        self.size = size

    def finish(self) -> NDArray[Any]:
        """Return the array without the memory behind its end."""
        self._resize(self.size)
        return self._array

    def _resize(self, size: int) -> None:
        self._array.resize(self._shape(size), refcheck=False)  # there are no views yet

    def _shape(self, size: int) -> tuple[int, ...]:
        return (size, self._width) if self._width else (size,)
