"""Tables of a snapshot as they come, message after message."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.snapshot.arrays import array_of, rows_of
from paramfleet_pserver.core.pacing import Stride
from paramfleet_pserver.requests.checked import spec_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.parts import Update
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.admission import SketchPages
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.sparse import Places
from paramfleet_shared.values.sorting import each_once
from paramfleet_shared.values.spans import MissedUpdates

__all__ = ["TableReader"]


class TableReader:
    """Fills a store, which is empty at first.

    Args:
        store: It.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._places: list[tuple[NDArray[np.int64], NDArray[np.bool_]]] = []
        """Of the block that comes, until its index does."""
        self._free: list[NDArray[np.int64]] = []
        """Of the same block."""
        self._without_places = set[tuple[str, int]]()
        """Blocks whose rows had none: tables and numbers."""

    def table(self, message: Message) -> None:
        """Make a table, without rows.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
            FleetError: as ``TableStore.check`` and ``check_limits``.
        """
        fields = Fields(message.fields, where="table")
        spec = spec_of(fields.map("spec"))
        if not self._store.check([spec]):
            raise MalformedMessageError(where=f"table {spec.name!r}", rule="comes twice")
        self._store.check_limits([spec])
        table = self._store.build(spec)
        table.version, table.num_updates = (
            fields.integer("table_version"),
            fields.integer("updates"),
        )
        table.num_pushes, table.writes = fields.integer("pushes"), fields.integer("writes")
        table.last_write = fields.text("last_write")
        table.is_loaded, table.is_assigned = fields.flag("loaded"), fields.flag("assigned")
        guards = array_of(message, "guards", "float64", (len(table.guards), None))
        for guard, numbers in zip(table.guards, guards.tolist(), strict=True):
            guard.restore(numbers)
        if isinstance(table, DenseTable):
            table.restore_updates(_updates_of(message))
            table.missed = MissedUpdates.checked(rows_of(message, "missed", 3), table.num_rows)
        self._store.put([table])

    def values(self, message: Message) -> None:
        """Put values of a dense table, with their states.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        fields = Fields(message.fields, where="values")
        held, at = self._dense(fields).range, fields.integer("start")
        values = array_of(message, "values", "float32", (None,))
        if at + len(values) > len(held.values):
            raise MalformedMessageError(where="values", rule="are beyond the table's end")
        shape = (len(held.states), len(values))
        held.put(at, values, array_of(message, "states", "float32", shape), stepped=True)

    def range(self, message: Message) -> None:
        """Say whether a dense table's optimizer has stepped it.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        fields = Fields(message.fields, where="range")
        self._dense(fields).range.restore(untouched=fields.flag("untouched"))

    def places(self, message: Message) -> None:
        """Note some of a block's places, in their order.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        ids = array_of(message, "ids", "int64", (None,))
        self._places.append((ids, array_of(message, "live", "bool", ids.shape)))

    def free(self, message: Message) -> None:
        """Note some of a block's free places, in their order.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        self._free.append(array_of(message, "free", "int64", (None,)))

    def index(self, message: Message) -> None:
        """Make rows in the places that came.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
            CapacityError: if there is no room for the rows.
            TableMemoryError: if there is no memory for them.
            ValueError: if an id is in two places.
        """
        fields = Fields(message.fields, where="index")
        table, block = self.block_of(fields)
        ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in self._places)])
        is_live = np.concatenate([np.empty(0, np.bool_), *(part[1] for part in self._places)])
        self._places = []
        if block.rows.num_slots:
            raise MalformedMessageError(where="index", rule="comes twice for a block")
        _check_shards(table, block, ids)
        free = np.concatenate([np.empty(0, np.int64), *self._free])
        self._free = []
        if len(free) and not _are_free(free, is_live):
            rule = "must be places without a row, each once"
            raise MalformedMessageError(where="tensor 'free'", rule=rule)
        turns, pushes = fields.integer("turns"), fields.integer("pushes")
        if fields.has("has_places") and not fields.flag("has_places"):
            self._without_places.add((table.spec.name, fields.integer("block")))
        block.rows.restore(Places(ids, is_live, free, turns, pushes))

    def sketch(self, message: Message) -> None:
        """Put counters of ids without a row.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        fields = Fields(message.fields, where="sketch")
        table, block = self.block_of(fields)
        shard = fields.integer("shard")
        first, admission = table.hosted.start, block.rows.admission
        if admission is None or shard - first not in block.shards:
            raise MalformedMessageError(where="sketch", rule="is of another block or table")
        pages = array_of(message, "pages", "int64", (None,))
        counters = array_of(message, "counters", "uint8", (len(pages), None))
        some = SketchPages(pages, counters, fields.integer("counted"))
        try:
            admission.restore(shard, some)
        except ValueError as error:
            raise MalformedMessageError(where="sketch", rule=str(error)) from error

    def rows(self, message: Message) -> None:
        """Fill rows that are there, or make them where rows have no places.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
            FleetError: if there is no room for them.
        """
        fields = Fields(message.fields, where="rows")
        table, block = self.block_of(fields)
        ids = array_of(message, "ids", "int64", (None,))
        had_none = (table.spec.name, fields.integer("block")) in self._without_places
        makes = had_none or not block.rows.has_places
        if makes:
            _check_shards(table, block, ids)
        elif (block.rows.find(ids) < 0).any():
            raise MalformedMessageError(where="rows", rule="have an id without a place")
        width = block.rows.layout.states.pitch
        values = array_of(message, "values", "float32", (len(ids), block.rows.spec.dim))
        states = array_of(message, "states", "float32", (len(ids), width))
        if makes:
            if len(block.rows.load(ids, values, states)):
                raise MalformedMessageError(where="rows", rule="have an id twice")
            return
        block.rows.assign(ids, values, states)

    def block_of(self, fields: Fields) -> tuple[SparseTable, Block]:
        """Return the block that a message names, with its table.

        Raises:
            UnknownTableError: if there is no such table.
            MalformedMessageError: if there is no such block.
        """
        table, index = self._store.find(fields.text("table")), fields.integer("block")
        if not isinstance(table, SparseTable) or index >= len(table.blocks):
            raise MalformedMessageError(where="field 'block'", rule="names none of a table")
        return table, table.blocks[index]

    def _dense(self, fields: Fields) -> DenseTable:
        table: Table = self._store.find(fields.text("table"))
        if not isinstance(table, DenseTable):
            raise MalformedMessageError(where="field 'table'", rule="must name a dense table")
        return table


def _updates_of(message: Message) -> Mapping[int, Update]:
    """Return the latest update of each worker that came in pieces."""
    rows = rows_of(message, "workers", 4)
    numbers: list[list[float]] = array_of(
        message, "numbers", "float64", (len(rows), 4)
    ).tolist()
    found: dict[int, Update] = {}
    for (worker, incarnation, sequence, number), of in zip(rows, numbers, strict=True):
        square, first, scale, power = of
        stride = None if math.isnan(scale) else Stride(scale, power)
        is_first = None if math.isnan(first) else bool(first)
        found[worker] = Update((incarnation, sequence), square, number, is_first, stride)
    return found


def _are_free(free: NDArray[np.int64], is_live: NDArray[np.bool_]) -> bool:
    """Return whether places have no row, and come once."""
    if int(free.min()) < 0 or int(free.max()) >= len(is_live) or is_live[free].any():
        return False
    return len(each_once(free)) == len(free)


def _check_shards(table: SparseTable, block: Block, ids: NDArray[Any]) -> None:
    """Pass if all ids of a block belong there.

    Raises:
        MalformedMessageError: if one belongs elsewhere.
    """
    routed, first = route(ids, table.spec.num_shards), table.hosted.start
    start, stop = first + block.shards.start, first + block.shards.stop
    if routed.offsets[stop] - routed.offsets[start] != len(ids):
        raise MalformedMessageError(where="places", rule="have an id of another block")
