"""What a narrow format loses of a gradient isn't lost for good.

16-bit formats round by chance: what arrives is right on average, and nothing is to be kept.
int8 rounds too coarsely for that. It has error feedback, which sends what was lost with the
next gradient: with ``g`` the gradient and ``r`` what is left of former ones, ``q = Q(g + r)``
is sent and ``r' = g + r - q`` stays (Seide et al., "1-Bit Stochastic Gradient Descent",
2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019). A table's residuals take 4
bytes a value of every row that this worker pushed, and about 16 bytes a row to find it.

Shape legend: U = unique ids, D = row width, P = values of a dense table.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    Encoded,
    decode_rows,
    encode_rows,
    encode_with_rest,
)
from paramfleet_shared.tables.rowstore import RowColumn, SlotIndex

__all__ = ["DenseResidual", "Found", "RowResiduals", "Salts"]

_WORD = (1 << 64) - 1


class Salts:
    """By which salts gradients are rounded: for each another one, the same in each run.

    Args:
        rank: Of this worker. What one rounds up another needn't.
        incarnation: Of this worker, so that it doesn't repeat what its former self did.
    """

    def __init__(self, rank: int, incarnation: int) -> None:
        self._state = (incarnation << 32 | rank) * 0xD1342543DE82EF95 & _WORD

    def next(self) -> int:
        """Return a salt of 32 bits: S. Vigna's splitmix64."""
        self._state = mixed = self._state + 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
        return (mixed ^ mixed >> 31) >> 32


class Found(NamedTuple):
    """Where the rests of some rows are kept."""

    within: SlotIndex
    """By which: ``forget`` begins another."""
    slots: NDArray[np.int64]
    """-1 for a row of which nothing was kept."""


class RowResiduals:
    """What int8 left of the gradients of a sparse table's rows. Any thread may use it.

    Args:
        table: Its name.
        dim: Row width D.
    """

    def __init__(self, table: str, dim: int) -> None:
        self._table = table
        self._dim = dim
        self._using = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop what is left."""
        with self._using:
            self._index = SlotIndex(table=self._table)
            self._left = RowColumn(self._dim, table=self._table)

    @property
    def num_rows(self) -> int:
        """Return of how many rows something is kept."""
        return self._index.num_rows

    def find(self, ids_U: NDArray[np.int64]) -> Found:
        """Return where the rests of rows are kept, for ``encode``: half of its work.

        Args:
            ids_U: int64 [U], each id once.
        """
        with self._using:
            return Found(self._index, self._index.find(ids_U, create=False))

    def encode(
        self,
        ids_U: NDArray[np.int64],
        grads_UD: NDArray[np.float32],
        found: Found | None = None,
    ) -> Encoded:
        """Return the gradients with what was left of these rows, as they travel.

        Args:
            ids_U: int64 [U], each id once.
            grads_UD: float32 [U, D].
            found: What ``find`` returned for these ids, if it was asked.
        """
        with self._using:
            if found is None or found.within is not self._index:
                slots = self._index.find(ids_U, create=True)
            else:
                slots = self._made(ids_U, found.slots)
            self._left.ensure(self._index.num_rows)
            return encode_with_rest(grads_UD, self._left.array, slots)

    def _made(self, ids_U: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of rows, with new ones for those that had none."""
        new = np.flatnonzero(slots < 0)
        if len(new):
            slots[new] = self._index.find(ids_U[new], create=True)
        return slots

    def take(self, *, max_rows: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return all that is left, ids int64 [U] and rows float32 [U, D], and keep nothing.

        Args:
            max_rows: Rows in one piece.
        """
        num, ids, left = self._index.num_rows, self._index.ids(), self._left.array
        for start in range(0, num, max_rows):
            piece = slice(start, min(start + max_rows, num))
            some = left[piece].any(axis=1)
            if some.any():
                yield ids[piece][some], left[piece][some]
        self.forget()


class DenseResidual:
    """What int8 left of the gradients of a dense table. One thread owns it.

    Args:
        size: Values P.
    """

    def __init__(self, size: int) -> None:
        self._left = np.zeros(size, np.float32)

    def forget(self) -> None:
        """Drop what is left."""
        self._left[:] = 0

    def encode(self, grads_P: NDArray[np.float32], parts: Sequence[slice]) -> list[Encoded]:
        """Return each part of the gradient with what was left of it, as it travels."""
        self._left += grads_P
        encoded = [encode_rows(self._left[part], "int8") for part in parts]
        for part, one in zip(parts, encoded, strict=True):
            self._left[part] -= decode_rows(one, "int8")
        return encoded

    def take(self) -> NDArray[np.float32]:
        """Return all that is left, float32 [P], and keep nothing."""
        left, self._left = self._left, np.zeros_like(self._left)
        return left
