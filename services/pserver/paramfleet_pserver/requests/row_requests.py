"""Requests that change rows past their optimizer, judged before any effect.

Rows are removed or written, and what an export has of their ``delta_score`` is subtracted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.changes import identity_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds, tensor_of
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.limits import most_written_rows
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import Encoded
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import check_array
from paramfleet_shared.values.ids import Rank, Step

__all__ = [
    "DiscountRequest",
    "RemoveRequest",
    "WriteRequest",
    "discount_request",
    "remove_request",
    "write_request",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowRequest:
    """A change of rows of one table."""

    identity: ChangeIdentity
    step: Step
    """Steps that the worker has taken."""
    table: SparseTable
    rows: RowIds

    @property
    def rank(self) -> Rank:
        """Return the rank of the worker that sent the request."""
        return Rank(self.identity.worker)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveRequest(_RowRequest):
    """Rows that a worker removes; ids without a row change nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscountRequest(_RowRequest):
    """Amounts of ``delta_score`` that an export has written.

    The table has an accessor; ids without a row change nothing.
    """

    amounts: NDArray[np.float32]
    """Amount of each row. [n]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteRequest(_RowRequest):
    """Values that a worker gives rows; ids without a row get one."""

    values: NDArray[np.float32]
    """[n, D]"""
    only_if_new: bool = False
    """Whether it has an effect only on a table that has neither been loaded nor trained."""
    is_last: bool = False
    """With ``only_if_new``: whether the table counts as no longer new after this request."""

    @property
    def content(self) -> SparsePart:
        """Return the rows as the part of a change."""
        return SparsePart(self.rows.ids, self.rows.offsets, Encoded(self.values), unique=True)


def remove_request(message: Message, store: TableStore) -> RemoveRequest:
    """Read a ``remove``.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is missing,
            or the table is dense.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="remove")
    table = store.find(fields.text("table"))
    if not isinstance(table, SparseTable):
        raise MalformedMessageError(
            where="remove field 'table'", rule="must name a sparse table"
        )
    return RemoveRequest(
        identity=identity_of(fields),
        step=Step(fields.integer("step")),
        table=table,
        rows=PartIds(message).read(0, table, packed=False),
    )


def discount_request(message: Message, store: TableStore) -> DiscountRequest:
    """Read a ``discount``.

    Raises:
        MalformedMessageError: if a field, the bounds of ids or an amount is wrong, a tensor is
            missing, or the table has no accessor.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="discount")
    table = store.find(fields.text("table"))
    if not isinstance(table, SparseTable) or not table.spec.optimizer.num_counts:
        raise MalformedMessageError(
            where="discount field 'table'", rule="must name a table with an accessor"
        )
    rows = PartIds(message).read(0, table, packed=False)
    amounts = message.tensors.get("0.amounts")
    if amounts is None:
        raise MalformedMessageError(where="discount", rule="needs the tensor '0.amounts'")
    check_array(amounts, np.float32, (len(rows.ids),), table=table.spec.name)
    if not np.isfinite(amounts).all():
        raise MalformedMessageError(where="discount tensor '0.amounts'", rule="must be finite")
    return DiscountRequest(
        identity=identity_of(fields),
        step=Step(fields.integer("step")),
        table=table,
        rows=rows,
        amounts=amounts,
    )


def write_request(message: Message, store: TableStore) -> WriteRequest:
    """Read a ``write``.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is missing,
            the table is dense or has an accessor, or the rows are too many for one request.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="write")
    table = store.find(fields.text("table"))
    if not isinstance(table, SparseTable) or table.spec.optimizer.num_counts:
        raise MalformedMessageError(
            where="write field 'table'", rule="must name a sparse table without an accessor"
        )
    rows = PartIds(message).read(0, table, packed=False)
    if len(rows.ids) > (most := most_written_rows(table.spec.dim)):
        rule = f"has {len(rows.ids):,} rows of dim {table.spec.dim}, and may have {most:,}"
        raise MalformedMessageError(where="write tensor '0.ids'", rule=rule)
    shape = (len(rows.ids), table.spec.dim)
    return WriteRequest(
        identity=identity_of(fields),
        step=Step(fields.integer("step")),
        table=table,
        rows=rows,
        values=tensor_of(message, "0.values", table, dtype="float32", shape=shape),
        only_if_new=fields.flag("only_if_new"),
        is_last=fields.flag("is_last"),
    )
