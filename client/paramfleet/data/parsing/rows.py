"""Rows as a dataset keeps them: arrays, not an object a sample."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet.data.parsing.row_kernels import gather, mix
from paramfleet.data.parsing.slots import Layout

__all__ = ["Rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Samples in the order of their lines. R = rows, S = slots.

    The values of a row lie one behind the other, slot after slot: the integers of all
    slots in ``ids``, the floats of all slots in ``floats``.
    """

    counts: NDArray[np.int32]
    """Values of each slot, [R, S]."""
    ids: NDArray[np.int64]
    floats: NDArray[np.float32]
    id_starts: NDArray[np.int64]
    """Where each row's integers begin, and where the last one's end, [R + 1]."""
    float_starts: NDArray[np.int64]
    """The same of the floats, [R + 1]."""

    @classmethod
    def empty(cls, num_slots: int) -> "Rows":
        """Return no rows."""
        return cls.of(
            np.empty((0, num_slots), np.int32), np.empty(0, np.int64), np.empty(0, np.float32)
        )

    @classmethod
    def of(
        cls,
        counts: NDArray[np.int32],
        ids: NDArray[np.int64],
        floats: NDArray[np.float32],
        is_float: NDArray[np.uint8] | None = None,
    ) -> "Rows":
        """Return the rows that these arrays make; ``is_float`` is needed if there are any."""
        marks = np.zeros(counts.shape[1], np.uint8) if is_float is None else is_float
        sums = [counts[:, marks == kind].sum(axis=1, dtype=np.int64) for kind in (0, 1)]
        starts = [np.concatenate([[0], np.cumsum(each)]).astype(np.int64) for each in sums]
        return cls(
            counts=counts, ids=ids, floats=floats, id_starts=starts[0], float_starts=starts[1]
        )

    @classmethod
    def join(cls, pieces: Sequence["Rows"]) -> "Rows":
        """Return the rows of at least one piece, one behind the other."""
        return cls(
            counts=np.concatenate([piece.counts for piece in pieces]),
            ids=np.concatenate([piece.ids for piece in pieces]),
            floats=np.concatenate([piece.floats for piece in pieces]),
            id_starts=_joined([piece.id_starts for piece in pieces]),
            float_starts=_joined([piece.float_starts for piece in pieces]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_bytes(self) -> int:
        """Memory that the arrays take."""
        arrays = (self.counts, self.ids, self.floats, self.id_starts, self.float_starts)
        return sum(array.nbytes for array in arrays)

    def take(self, order: NDArray[np.int64]) -> "Rows":
        """Return a copy of the rows of these numbers, in their order."""
        id_starts = _starts(self.id_starts, order)
        float_starts = _starts(self.float_starts, order)
        ids = np.empty(id_starts[-1], np.int64)
        floats = np.empty(float_starts[-1], np.float32)
        gather(self.ids, self.id_starts, order, ids)
        gather(self.floats, self.float_starts, order, floats)
        return Rows(
            counts=self.counts[order],
            ids=ids,
            floats=floats,
            id_starts=id_starts,
            float_starts=float_starts,
        )

    def mixed(self, layout: Layout, slots: Sequence[int], other: NDArray[np.int64]) -> "Rows":
        """Return a copy in which some slots of row r are those of row ``other[r]``.

        Args:
            layout: All slots.
            slots: Which ones are taken from the other row.
            other: A permutation of the rows, [R].
        """
        counts = self.counts.copy()
        counts[:, slots] = self.counts[other][:, slots]
        ids, floats = np.empty_like(self.ids), np.empty_like(self.floats)
        marks = np.where(layout.is_float, 0, 1).astype(np.uint8)
        marks[slots] *= 2
        mix(self.counts, self.ids, self.id_starts, other, marks, ids)
        marks = np.where(layout.is_float, 1, 0).astype(np.uint8)
        marks[slots] *= 2
        mix(self.counts, self.floats, self.float_starts, other, marks, floats)
        return Rows.of(counts, ids, floats, layout.is_float)


def _starts(starts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    result = np.zeros(len(order) + 1, np.int64)
    np.cumsum(starts[order + 1] - starts[order], out=result[1:])
    return result


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return starts of pieces as starts of them all; each piece's begin at 0."""
    ends = np.cumsum([part[-1] for part in parts])
    moved = [part[1:] + end - part[-1] for part, end in zip(parts, ends, strict=True)]
    return np.concatenate([np.zeros(1, np.int64), *moved])
