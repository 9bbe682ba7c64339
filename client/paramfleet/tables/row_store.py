"""The rows that this process holds itself: all of them alone, a replica in GEO.

A row has columns beside each other: its value, and what a mode or an optimizer keeps
with it. What works on all of a row so finds it in one place.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.firsts import firsts_of
from paramfleet_shared.tables.kernels.rows import gather
from paramfleet_shared.tables.kernels.stepping.ctr import CtrTable
from paramfleet_shared.tables.memory.reservation import CapacityError, default_max_rows, reserve
from paramfleet_shared.tables.rows.admission import HAS_ROW, Admission
from paramfleet_shared.tables.rows.batch import RowBatch
from paramfleet_shared.tables.rows.ctr import ctr_layout_of
from paramfleet_shared.tables.rows.evicting import AsOf, Valued, eviction_keys
from paramfleet_shared.tables.rows.layout import ColumnSpec, RowLayout
from paramfleet_shared.tables.rowstore import SlotIndex, initial_rows
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from paramfleet.tables.sparse import SparseTable

__all__ = ["RowStore", "spec_of"]

_VALUE = "row.value"
"""As no optimizer calls a state."""


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
        storage=table.kept_as.storage,
        rounding=table.kept_as.rounding,
        entry=table.kept_as.entry,
    )


_Slots = slice | NDArray[np.int64]


class RowStore:
    """Rows of one table by id, growing without a limit but memory.

    One thread owns a store; others may call ``held``.

    Shape legend: U = unique ids, D = row width, C = width of a column.
    """

    num_shards = 1
    by_id = False

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._index = SlotIndex(table=spec.name)
        self._first: dict[str, NDArray[np.float32] | None] = {}
        """What each column but the value starts as; None for the row's own value."""
        self._layout = RowLayout((ColumnSpec(_VALUE, spec.dim),))
        self._table = self._reserved(self._layout)
        self._looked_up = (np.empty(0, np.int64), np.empty(0, np.int64))
        """The newest ids that were read to be trained, and their slots."""
        self._finding = threading.Lock()
        self._admission = None if spec.entry.admits_all else Admission(spec)
        self.note_refused: Callable[[NDArray[np.int64]], None] = lambda _: None
        """Is called with ids, int64 [n], each once, that were pushed and get no row."""

    @classmethod
    def of(cls, table: "SparseTable") -> "RowStore":
        """Make a store for a table, with its first rows."""
        store = cls.empty(table)
        for ids, values in table.first_rows:
            store.write(ids, values)
        return store

    @classmethod
    def empty(cls, table: "SparseTable") -> "RowStore":
        """Make an empty store for a table."""
        accessor = table.accessor
        kept = table.kept_as
        rule = (
            OptimizerSpec(rule="sum", tracks=kept.tracks, half_life=kept.half_life)
            if accessor is None
            else accessor.rule
        )
        return cls(spec_of(table, rule=rule))

    @property
    def num_rows(self) -> int:
        """Return how many rows exist."""
        return self._index.num_rows

    @property
    def num_slots(self) -> int:
        """Return how many slots were used ever; no row's is as high."""
        return self._index.num_slots

    @property
    def layout(self) -> RowLayout:
        """Return the columns of a row; stale once a column is added."""
        return self._layout

    @property
    def pitch(self) -> int:
        """Return how many floats a row takes, all columns together."""
        return self._layout.pitch

    @property
    def flat(self) -> NDArray[np.float32]:
        """Return all rows for kernels, ``pitch`` floats each; stale once a column is added."""
        return self._table.reshape(-1)

    @property
    def values(self) -> NDArray[np.float32]:
        """Return a view of every row's value by slot, [capacity, D]."""
        return self._table[:, : self.spec.dim]

    def ids(self) -> NDArray[np.int64]:
        """Return every slot's id, int64 [num_slots]; one without a row has a former one's."""
        return self._index.ids()

    def live_ids(self) -> NDArray[np.int64]:
        """Return the id of every row, by slot, int64 [num_rows]."""
        return self._index.ids()[self._index.live(0, self._index.num_slots)]

    def add_column(self, name: str, first: NDArray[np.float32] | None) -> None:
        """Keep another column.

        Args:
            name: Its name.
            first: float32 [C], what every row of it starts as; None is a copy of
                the row's own value.

        Raises:
            CapacityError: if there is no room for the rows that exist.
        """
        former, count, place = self._table, self.num_slots, self.pitch
        width = self.spec.dim if first is None else len(first)
        layout = self._layout.and_column(ColumnSpec(name, width))
        self._table = self._reserved(layout)
        self._table[:count, :place] = former[:count]
        self._table[:count, place:] = self.values[:count] if first is None else first
        self._layout = layout
        self._first[name] = first

    def column(self, name: str) -> NDArray[np.float32]:
        """Return a view of a column by slot, [capacity, C]."""
        return self._table[:, self._layout.spans[name]]

    def place(self, name: str) -> int:
        """Return where in a row a column begins, in floats."""
        start: int = self._layout.spans[name].start
        return start

    def admitted(self, rows: RowBatch) -> RowBatch:
        """Return what is pushed for ids that have a row, or get one now, of ids each once."""
        if self._admission is None:
            return rows
        unknown = self.held(rows.ids) < 0
        refused = np.zeros(len(rows.ids), np.bool_)
        refused[unknown] = ~self._admission.decide(rows.ids[unknown].view(np.uint64))
        if not refused.any():
            return rows
        self.note_refused(rows.ids[refused])
        stays = ~refused
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(stays)])
        return RowBatch(rows.ids[stays], rows.values[stays], ends[rows.offsets])

    def waits(
        self, ids: NDArray[np.int64], is_held: NDArray[np.bool_]
    ) -> NDArray[np.int32] | None:
        """Return in how many steps ids must come to get a row in the last one: int32 [n].

        Args:
            ids: int64 [n], each once.
            is_held: bool [n]: which have a row; of these it is 0.

        Returns:
            None of a table that gives every id a row.
        """
        if self._admission is None:
            return None
        waits = np.full(len(ids), HAS_ROW, np.int32)
        waits[~is_held] = self._admission.waits(ids[~is_held].view(np.uint64))
        return waits

    def note_uses(self, ids: NDArray[np.int64], uses: NDArray[np.int32]) -> None:
        """Count steps in which ids came that got no row.

        Args:
            ids: int64 [n], each once.
            uses: int32 [n].
        """
        if self._admission is not None:
            self._admission.note_uses(ids.view(np.uint64), uses)

    @property
    def free_rows(self) -> NDArray[np.int64] | None:
        """Return how many rows may still come, int64 [1]; None where nothing limits them."""
        if self._admission is None or not self.spec.entry.max_rows:
            return None
        return self._admission.free_rows()

    def slots(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's slot, making the rows that don't exist yet.

        Raises:
            CapacityError: if there is no room for them.
        """
        known, slots = self._looked_up
        if ids is known:
            return slots
        return self._find(ids, self._fill_values)

    def slots_to_overwrite(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's slot, as ``slots``, but with zeros for a new row's own value.

        A copy of the value is zeros, too.

        Raises:
            CapacityError: if there is no room for them.
        """
        return self._find(ids, self._fill_columns)

    def write(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Set the values of rows, making those that don't exist; other columns stay.

        Args:
            ids: int64 [n], each once.
            values: float32 [n, D].

        Raises:
            CapacityError: if there is no room for new rows; no value is set.
        """
        self.values[self.slots(ids)] = values

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values of rows, float32 [n, D], and make none; int64 [n]."""
        slots = self.held(ids)
        found, absent = self.values[slots], slots < 0
        found[absent] = initial_rows(self.spec, ids[absent])
        return found

    def remove(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove the rows of ids that have one; return their slots, which new rows take.

        Args:
            ids: int64 [n].

        Returns:
            int64 [removed].
        """
        with self._finding:
            slots = self._index.remove(ids)
            if self._admission is not None:
                self._admission.note_removed(ids[slots >= 0])
            slots = slots[slots >= 0]
            self._index.release(slots)
        nothing = np.empty(0, np.int64)
        self._looked_up = (nothing, nothing)
        return slots

    def clear(self) -> None:
        """Remove all rows, and count ids without one anew: as before anything was trained."""
        self.remove(self.live_ids().copy())
        if self._admission is not None:
            self._admission = Admission(self.spec)

    def valued(self, when: AsOf) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all rows, and by which order they are evicted: both int64 [n].

        Args:
            when: At what time.
        """
        slots = self._index.live(0, self._index.num_slots)
        slots = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        ids = self._index.ids()[slots]
        counted = seen = None
        if self.spec.optimizer.num_counts:
            layout = ctr_layout_of(self.spec.optimizer, self._layout)
            counted = CtrTable(firsts_of(self.spec), self.flat, layout)
        else:
            seen = self.column(SEEN.name)[:, 0]
        return ids, eviction_keys(Valued(self.spec, counted, seen), ids, slots, when)

    def held(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's slot, -1 where there is no row; any thread may call it."""
        with self._finding:
            return self._index.find(ids, create=False)

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
        create = create and not self.spec.creates_at_push
        slots = self.slots(ids_U) if create else self.held(ids_U)
        if create:
            self._looked_up = (ids_U, slots)  # the step that follows asks for them again
        dim = self.spec.dim
        rows = np.empty((len(ids_U), dim), np.float32)
        if gather(self.flat, self.pitch, slots, rows.reshape(-1), dim):
            absent = slots < 0
            rows[absent] = initial_rows(self.spec, ids_U[absent])
        return rows

    def _reserved(self, layout: RowLayout) -> NDArray[np.float32]:
        """Return room for rows, and hold no more than there is room for.

        Raises:
            CapacityError: if the rows that exist need more.
        """
        limit = min(self._index.max_rows, default_max_rows(layout.row_bytes))
        if limit < self.num_slots:
            raise CapacityError(
                table=self.spec.name, shard=0, rows=self.num_slots, max_rows=limit
            )
        self._index.max_rows = limit
        return reserve(limit * layout.pitch, np.float32).reshape(limit, layout.pitch)

    def _find(
        self, ids: NDArray[np.int64], fill: Callable[[_Slots], None]
    ) -> NDArray[np.int64]:
        with self._finding:
            before = self._index.mark()
            try:
                return self._index.find(ids, create=True)
            finally:  # a row exists from the moment its id does
                for made in self._index.made_since(before):
                    if not isinstance(made, slice):
                        self._table[made] = 0  # a removed row was there
                    fill(made)
                    if self._admission is not None:
                        self._admission.note_made(self._index.ids()[made])

    def _fill_values(self, made: _Slots) -> None:
        """Give new rows their first values, and what is kept beside them."""
        fresh = self._index.ids()[made]
        self._table[made, : self.spec.dim] = initial_rows(self.spec, fresh)
        self._fill_columns(made)

    def _fill_columns(self, made: _Slots) -> None:
        """Give new rows what is kept beside their values; they are zeros as yet."""
        for name, first in self._first.items():
            if first is None:
                self._table[made, self._layout.spans[name]] = self._table[made, : self.spec.dim]
            elif first.any():
                self._table[made, self._layout.spans[name]] = first
