"""Requests to remove rows, judged before any effect."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.identities import FIRST_SEQUENCE
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import PushIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["RemoveRequest", "remove_request"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveRequest:
    """Which rows a worker removes."""

    identity: PushIdentity
    """By which a retry is recognized. A worker counts its removals from a table beside its
    pushes to it: its ``table`` is none of the tables' names."""
    step: Step
    """Steps that the worker has taken."""
    table: SparseTable
    ids: NDArray[np.int64]
    """Sorted by shard; those without a row change nothing. [n]"""
    offsets: NDArray[np.int64]
    """Bounds of this server's shards in ``ids``. [shards + 1]"""

    @property
    def rank(self) -> Rank:
        """Return whose request it is."""
        return Rank(self.identity.worker)


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
    ids, offsets = PartIds(message).read(0, table, packed=False)
    return RemoveRequest(
        identity=PushIdentity(
            worker=fields.integer("rank"),
            incarnation=fields.integer("incarnation"),
            table=f"<removals> {table.spec.name}",
            sequence=fields.integer("sequence", least=FIRST_SEQUENCE),
        ),
        step=Step(fields.integer("step")),
        table=table,
        ids=ids,
        offsets=offsets,
    )
