"""Requests to remove rows, judged before any effect."""

from dataclasses import dataclass

from paramfleet_pserver.requests.changes import identity_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["RemoveRequest", "remove_request"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveRequest:
    """Which rows a worker removes."""

    identity: ChangeIdentity
    step: Step
    """Steps that the worker has taken."""
    table: SparseTable
    rows: RowIds
    """Those that don't exist change nothing."""

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
    return RemoveRequest(
        identity=identity_of(fields),
        step=Step(fields.integer("step")),
        table=table,
        rows=PartIds(message).read(0, table, packed=False),
    )
