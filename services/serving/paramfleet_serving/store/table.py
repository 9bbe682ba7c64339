"""One served table: a base, what changed since, and what other ids read.

Shape legend: n = ids of a part of a change, D = width of a row, q = ids of a call.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

from paramfleet_serving.store.base import BaseRows
from paramfleet_serving.store.overlay import IN_BASE, Overlay
from paramfleet_shared.deltas.records import StreamTable
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["ServedTable"]


@final
class ServedTable:
    """The rows of a table at its version, and at the one before while that is still read.

    Args:
        facts: Which table.
        base: Its rows as of a base.
    """

    def __init__(self, facts: StreamTable, base: BaseRows) -> None:
        self.facts = facts
        self.base = base
        self.overlay = Overlay(facts.name, facts.dim)
        self._spec = TableSpec(
            name=facts.name,
            kind="sparse",
            dim=facts.dim,
            seed=facts.seed,
            initializer=facts.initializer,
            storage=facts.storage,
        )

    def put(self, ids: NDArray[np.int64], rows: NDArray[np.float32], number: int) -> None:
        """Take rows of a change: ids int64 [n], rows float32 [n, D].

        Raises:
            CapacityError: if there is no room for them.
        """
        self.overlay.put(ids, rows, number)

    def remove(self, ids: NDArray[np.int64], number: int) -> None:
        """Take removals of a change, int64 [n]; what has no row needs no note of it.

        Raises:
            CapacityError: if there is no room for them.
        """
        _, is_there = self.base.find(ids)
        is_there |= (
            self.overlay.find(ids, number) != IN_BASE if self.overlay.num_rows else False
        )
        self.overlay.remove(ids[is_there], number)

    def lookup(self, ids: NDArray[np.int64], number: int) -> NDArray[np.float32]:
        """Return the rows of ids at a number: int64 [q] to float32 [q, D]."""
        if not self.overlay.num_rows:
            return self._from_base(ids)
        places = self.overlay.find(ids, number)
        is_changed = places > 0
        if is_changed.all():
            return self.overlay.rows_at(places)
        out = np.empty((len(ids), self.facts.dim), np.float32)
        out[is_changed] = self.overlay.rows_at(places[is_changed])
        in_base = places == IN_BASE
        out[in_base] = self._from_base(ids[in_base])
        gone = ~(is_changed | in_base)
        if gone.any():
            out[gone] = self._firsts(ids[gone])
        return out

    def _from_base(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        places, is_there = self.base.find(ids)
        if is_there.all():
            return self.base.rows.take(places, axis=0)
        out = np.empty((len(ids), self.facts.dim), np.float32)
        out[is_there] = self.base.rows.take(places[is_there], axis=0)
        out[~is_there] = self._firsts(ids[~is_there])
        return out

    def _firsts(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return what ids without a row read: what the job would give them."""
        if self.facts.zero_unknown:
            return np.zeros((len(ids), self.facts.dim), np.float32)
        rows = initial_rows(self._spec, ids)
        if self.facts.drawn is not None:
            first, end = self.facts.drawn
            rows[:, :first] = rows[:, end:] = 0
        return rows
