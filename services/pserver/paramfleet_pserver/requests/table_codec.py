"""Whole tables as plain values and tensors, and back: what a load puts in their place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.changes import missed_in
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import tensor_of
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.routing import route

__all__ = ["describe_table", "read_table"]

_DENSE = ("values", "states")
_SPARSE = ("ids", "values", "states")


def describe_table(table: Table, index: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return a table that nobody trains, and its tensors by name.

    Args:
        table: It.
        index: Which it is of the message's tables.
    """
    about = {"spec": table.spec.to_wire(), "updates": table.num_updates}
    if isinstance(table, DenseTable):
        dense = table.range
        about["missed"] = [*map(list, table.missed.counts())]
        return about, {f"{index}.values": dense.values, f"{index}.states": dense.states}
    assert isinstance(table, SparseTable), "a table is sparse or dense"
    blocks = [block.rows.export(0, block.rows.num_places) for block in table.blocks]
    columns = zip(_SPARSE, zip(*blocks, strict=True), strict=True)
    return about, {f"{index}.{name}": np.concatenate(column) for name, column in columns}


def read_table(
    message: Message, about: Fields, index: int, table: SparseTable | DenseTable
) -> Table:
    """Fill a new table as ``describe_table`` described it; rows come in the same order.

    Args:
        message: What holds its tensors.
        about: Its description.
        index: Which it is of the message's tables.
        table: It, as built from its spec.

    Raises:
        MalformedMessageError: if a field or a tensor is missing, or of a wrong type.
        RowShapeError: if a tensor has another dtype or shape.
    """
    table.num_updates, table.is_loaded = about.integer("updates"), True
    if isinstance(table, DenseTable):
        table.missed = missed_in(about, table.num_rows)
        shapes = (table.range.values.shape, table.range.states.shape)
        table.range.assign(
            *(
                tensor_of(message, f"{index}.{name}", table, dtype="float32", shape=shape)
                for name, shape in zip(_DENSE, shapes, strict=True)
            )
        )
        return table
    width = RowLayout.of(table.spec).states.pitch
    ids = tensor_of(message, f"{index}.ids", table, dtype="int64", shape=(None,))
    shapes_of_rows = ((len(ids), table.spec.dim), (len(ids), width))
    values, states = (
        tensor_of(message, f"{index}.{name}", table, dtype="float32", shape=shape)
        for name, shape in zip(_DENSE, shapes_of_rows, strict=True)
    )
    routed = route(ids, table.spec.num_shards)
    for block in table.blocks:
        first = table.hosted.start
        start, stop = (
            int(routed.offsets[first + shard])
            for shard in (block.shards.start, block.shards.stop)
        )
        own = np.sort(routed.positions[start:stop])
        block.rows.assign(ids[own], values[own], states[own])
    return table
