"""Rows of one table that changed since its base: the newest value, and the one before.

So a change is put here a part at a time while the version before it is read: whoever reads at
a number sees the newer value of a row only if that number has it. Older ones aren't kept.

Shape legend: n = ids of a part of a change, D = width of a row, q = ids of a call.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.memory.reservation import RowColumn
from paramfleet_shared.tables.rowstore import SlotIndex, scatter_rows

__all__ = ["IN_BASE", "REMOVED", "Overlay"]

IN_BASE, REMOVED = 0, -1
"""Where a row's value is without a place here: in the base, or nowhere. Places are from 1."""

_SLOT_BYTES = 24
"""Of a slot beside the index: two places, and the number of its newest change."""


@final
class Overlay:
    """The changed rows of one table. One thread owns it, the one that looks up.

    Args:
        table: Named by errors.
        dim: D.
    """

    def __init__(self, table: str, dim: int) -> None:
        self._dim = dim
        self._index = SlotIndex(table=table)
        self._newest = RowColumn(1, np.int64, table=table)
        """Where the newest value of a slot is."""
        self._former = RowColumn(1, np.int64, table=table)
        """Where the one before is."""
        self._numbers = RowColumn(1, np.int64, table=table)
        """Which change brought the newest one."""
        self._rows = RowColumn(dim, np.float32, table=table)
        self._num_places = 0
        self._free = np.empty(0, np.int64)

    @property
    def num_rows(self) -> int:
        """Return how many ids have something here."""
        return self._index.num_slots

    @property
    def num_bytes(self) -> int:
        """Return the memory in use."""
        rows = 4 * self._dim * self._num_places
        return self._index.num_bytes + _SLOT_BYTES * self.num_rows + rows + self._free.nbytes

    def put(self, ids: NDArray[np.int64], rows: NDArray[np.float32], number: int) -> None:
        """Take rows of a change; who reads at a smaller number doesn't see them.

        Nobody may read any more at what was before the change before this one.

        Args:
            ids: int64 [n], each once in a change.
            rows: float32 [n, D].
            number: Of the change.

        Raises:
            CapacityError: if there is no room for them.
        """
        slots = self._slots_of(ids)
        former, newest, numbers = self._columns()
        places = former[slots]  # of values that nobody reads any more
        lacking = np.flatnonzero(places <= 0)
        places[lacking] = self._new_places(len(lacking))
        scatter_rows(self._rows.array, places - 1, rows)
        former[slots] = newest[slots]
        newest[slots] = places
        numbers[slots] = number

    def remove(self, ids: NDArray[np.int64], number: int) -> None:
        """Take removals of a change, int64 [n]; as ``put``.

        Raises:
            CapacityError: if there is no room for them.
        """
        slots = self._slots_of(ids)
        former, newest, numbers = self._columns()
        places = former[slots]
        self._free = np.concatenate([self._free, places[places > 0]])
        former[slots] = newest[slots]
        newest[slots] = REMOVED
        numbers[slots] = number

    def find(self, ids: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Return where the values of ids are at a number, int64 [q]: places, or see above."""
        slots = self._index.find(ids, create=False)
        former, newest, numbers = self._columns()
        here = slots.copy()
        here[slots < 0] = 0
        is_later = numbers.take(here) > number
        places = np.where(is_later, former.take(here), newest.take(here))
        places[slots < 0] = IN_BASE
        return places

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows at places, float32 [q, D]."""
        return self._rows.array.take(places - 1, axis=0)

    def content(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all ids, int64 [n] sorted, and where their newest values are, int64 [n].

        May be called on another thread while nothing is put here.
        """
        ids = self._index.ids()
        order = np.argsort(ids, kind="stable")
        _, newest, _ = self._columns()
        return ids[order], newest[: len(ids)][order]

    def _slots_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of ids, made where they have none.

        Raises:
            CapacityError: if there is no room for them.
        """
        slots = self._index.find(ids, create=True)
        for column in (self._newest, self._former, self._numbers):
            column.ensure(self._index.num_slots)
        return slots

    def _new_places(self, count: int) -> NDArray[np.int64]:
        """Return places of rows that nobody has, int64 [count].

        Raises:
            CapacityError: if there is no room for them.
        """
        reused, self._free = self._free[:count], self._free[count:]
        first = self._num_places + 1
        more = count - len(reused)
        self._rows.ensure(self._num_places + more)
        self._num_places += more
        return np.concatenate([reused, np.arange(first, first + more)])

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return former, newest and numbers, by slot."""
        return (
            self._former.array.reshape(-1),
            self._newest.array.reshape(-1),
            self._numbers.array.reshape(-1),
        )
