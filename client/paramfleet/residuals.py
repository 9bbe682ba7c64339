"""Error feedback: what a narrow format loses of a gradient is sent with the next one.

With ``g`` the gradient and ``r`` what is left of former ones, ``q = Q(g + r)`` is sent and
``r' = g + r - q`` stays: nothing is lost for good, only late (Seide et al., "1-Bit
Stochastic Gradient Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD",
2019). A table's residuals take 4 bytes a value of every row that this worker pushed, and
about 16 bytes a row to find it.

Shape legend: U = unique ids, D = row width, P = values of a dense table.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    decode_rows,
    encode_rows,
    encode_with_rest,
)
from paramfleet_shared.tables.rowstore import RowColumn, SlotIndex

__all__ = ["DenseResidual", "Found", "RowResiduals"]


class Found(NamedTuple):
    """Where the rests of some rows are kept."""

    within: SlotIndex
    """By which: ``forget`` begins another."""
    slots: NDArray[np.int64]


class RowResiduals:
    """What is left of the gradients of a sparse table's rows. Any thread may use it.

    Args:
        table: Its name.
        dim: Row width D.
        wire: How gradients travel.
    """

    def __init__(self, table: str, dim: int, wire: WireDtype) -> None:
        self._table = table
        self._dim = dim
        self._wire = wire
        self._using = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop what is left."""
        with self._using:
            self._index = SlotIndex(table=self._table)
            self._left = RowColumn(self._dim, table=self._table)

    def find(self, ids_U: NDArray[np.int64]) -> Found:
        """Return where the rests of rows are kept, for ``encode``: half of its work.

        Args:
            ids_U: int64 [U], each id once.
        """
        with self._using:
            return self._find(ids_U)

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
                found = self._find(ids_U)
            self._left.ensure(self._index.num_rows)
            return encode_with_rest(grads_UD, self._left.array, found.slots, self._wire)

    def _find(self, ids_U: NDArray[np.int64]) -> Found:
        return Found(self._index, self._index.find(ids_U, create=True))

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
    """What is left of the gradients of a dense table. One thread owns it.

    Args:
        size: Values P.
        wire: How gradients travel.
    """

    def __init__(self, size: int, wire: WireDtype) -> None:
        self._wire = wire
        self._left = np.zeros(size, np.float32)

    def forget(self) -> None:
        """Drop what is left."""
        self._left[:] = 0

    def encode(self, grads_P: NDArray[np.float32], parts: Sequence[slice]) -> list[Encoded]:
        """Return each part of the gradient with what was left of it, as it travels."""
        self._left += grads_P
        encoded = [encode_rows(self._left[part], self._wire) for part in parts]
        for part, one in zip(parts, encoded, strict=True):
            self._left[part] -= decode_rows(one, self._wire)
        return encoded

    def take(self) -> NDArray[np.float32]:
        """Return all that is left, float32 [P], and keep nothing."""
        left, self._left = self._left, np.zeros_like(self._left)
        return left
