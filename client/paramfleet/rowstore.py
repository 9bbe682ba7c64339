"""The rows that this process holds itself: all of them alone, a replica in GEO.

A row has columns: its value, and what a mode or an optimizer keeps beside it.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rowstore import RowColumn, SlotIndex, initial_rows
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from paramfleet.sparse import SparseTable

__all__ = ["RowStore", "spec_of"]


def spec_of(table: "SparseTable", *, rule: OptimizerSpec, num_shards: int = 1) -> TableSpec:
    """Describe a sparse table to a store or to the pservers."""
    return TableSpec(
        name=table.name,
        kind="sparse",
        dim=table.dim,
        size=0,
        num_shards=num_shards,
        seed=table.seed,
        initializer=table.initializer,
        optimizer=rule,
    )


class RowStore:
    """Rows of one table by id, growing without a limit but memory.

    One thread owns a store.
    """

    num_shards = 1

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._index = SlotIndex()
        self._columns: dict[str, RowColumn] = {}
        self._first: dict[str, NDArray[np.float32] | None] = {}
        self._values = RowColumn(spec.dim)

    @classmethod
    def of(cls, table: "SparseTable") -> "RowStore":
        """Make an empty store for a table."""
        return cls(spec_of(table, rule=OptimizerSpec(rule="sum")))

    @property
    def num_rows(self) -> int:
        """Return how many rows exist."""
        return self._index.num_rows

    @property
    def values(self) -> NDArray[np.float32]:
        """Return a view of every row's value by slot, [capacity, D]."""
        return self._values.array

    def ids(self) -> NDArray[np.int64]:
        """Return every row's id by slot, int64 [num_rows]."""
        return self._index.ids()

    def add_column(self, name: str, first: NDArray[np.float32] | None) -> None:
        """Keep another column of row width.

        Args:
            name: Its name.
            first: float32 [D], what every row of it starts as; None is a copy of
                the row's own value.
        """
        column = RowColumn(self.spec.dim)
        column.ensure(self.num_rows)
        count = self.num_rows
        column.array[:count] = self.values[:count] if first is None else first
        self._columns[name] = column
        self._first[name] = first

    def column(self, name: str) -> NDArray[np.float32]:
        """Return a view of a column by slot, [capacity, D]."""
        return self._columns[name].array

    def slots(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's slot, making the rows that don't exist yet."""
        before = self._index.num_rows
        slots = self._index.find(ids, create=True)
        after = self._index.num_rows
        if after > before:
            self._values.ensure(after)
            fresh = self._index.ids()[before:after]
            self._values.array[before:after] = initial_rows(self.spec, fresh)
            for name, column in self._columns.items():
                column.ensure(after)
                first = self._first[name]
                rows = self._values.array[before:after] if first is None else first
                column.array[before:after] = rows
        return slots

    def lookup(
        self,
        table: "SparseTable",
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        create: bool,
    ) -> NDArray[np.float32]:
        """Return rows as ``RowSource`` promises."""
        del table, offsets  # a store holds one, in one shard
        if create:
            slots = self.slots(ids_U)  # before the view: making rows may extend it
            return self.values[slots]
        slots = self._index.find(ids_U, create=False)
        absent = slots < 0
        rows = (
            self.values[np.where(absent, 0, slots)]
            if self.num_rows
            else np.empty((len(ids_U), self.spec.dim), np.float32)
        )
        if absent.any():
            rows[absent] = initial_rows(self.spec, ids_U[absent])
        return rows
