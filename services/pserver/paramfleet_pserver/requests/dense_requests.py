"""Requests about dense tables alone: first values, and numbers that come in pieces."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.changes import set_values_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import tensor_of
from paramfleet_pserver.tables.table import DenseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import WIRE_DTYPES, stored_dtype
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.values.ids import Rank

__all__ = ["AssignRequest", "StageRequest", "assign_request", "stage_request"]

STAGED_DTYPES = frozenset(stored_dtype(wire) for wire in WIRE_DTYPES)


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignRequest:
    """First values of this server's range of a dense table, or some that a program has set."""

    rank: Rank
    incarnation: int
    table: DenseTable
    only_if_new: bool
    values: NDArray[np.float32]
    """Of the whole range, or of ``places``."""
    places: NDArray[np.int64] | None = None
    """Which values of the range these are, rising; None for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRequest:
    """A piece of the numbers of a request that is to come."""

    rank: Rank
    incarnation: int
    table: DenseTable
    number: int
    """By which the request will name them."""
    start: int
    """The first one's place in this server's range."""
    values: NDArray[Any]
    """As they travel."""


def assign_request(message: Message, store: TableStore) -> AssignRequest:
    """Read an ``assign``.

    Raises:
        MalformedMessageError: if a field is wrong, the values are missing, or the
            table is sparse.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if the values' dtype or number is wrong.
    """
    fields = Fields(message.fields, where="assign")
    table = _dense_table(fields, store, where="assign")
    places, values = set_values_of(message, "set", table) or (None, None)
    if values is None:
        shape = (table.num_rows,)
        values = tensor_of(message, "rows", table, dtype="float32", shape=shape)
    return AssignRequest(
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        table=table,
        only_if_new=fields.flag("only_if_new"),
        values=values,
        places=places,
    )


def stage_request(message: Message, store: TableStore) -> StageRequest:
    """Read a ``stage``.

    Raises:
        MalformedMessageError: if a field is wrong, the piece is missing or none of the
            range, or the table is sparse.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if the piece has another shape, or a dtype that doesn't travel.
    """
    fields = Fields(message.fields, where="stage")
    table = _dense_table(fields, store, where="stage")
    start, values = fields.integer("start"), message.tensors.get("piece")
    if values is None:
        raise MalformedMessageError(where="tensor 'piece'", rule="is missing")
    if values.ndim != 1 or values.dtype.name not in STAGED_DTYPES:
        raise RowShapeError(
            table=table.spec.name,
            expected=f"piece of {', '.join(sorted(STAGED_DTYPES))} [any]",
            got=f"{values.dtype} {list(values.shape)}",
        )
    if start + len(values) > table.num_rows:
        rule = f"with the piece must be at most {table.num_rows}, the values held here"
        raise MalformedMessageError(where="stage field 'start'", rule=rule)
    return StageRequest(
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        table=table,
        number=fields.integer("number"),
        start=start,
        values=values,
    )


def _dense_table(fields: Fields, store: TableStore, *, where: str) -> DenseTable:
    table = store.find(fields.text("table"))
    if not isinstance(table, DenseTable):
        raise MalformedMessageError(
            where=f"{where} field 'table'", rule="must name a dense table"
        )
    return table
