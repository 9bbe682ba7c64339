"""Requests to bring rows into memory before they are needed, judged before any effect."""

from dataclasses import dataclass

from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.values.ids import Rank

__all__ = ["MAX_IDS", "PrefetchRequest", "prefetch_request"]

MAX_IDS = 1 << 18
"""Of one request: some seconds of a disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefetchRequest:
    """Which rows a worker will need."""

    rank: Rank
    incarnation: int
    table: SparseTable
    rows: RowIds
    """Those that don't exist, or are in memory, are passed over."""


def prefetch_request(message: Message, store: TableStore) -> PrefetchRequest:
    """Read a ``prefetch``.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is missing,
            the table is dense, or there are more than ``MAX_IDS`` ids.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="prefetch")
    rank, incarnation = Rank(fields.integer("rank")), fields.integer("incarnation")
    table = store.find(fields.text("table"))
    if not isinstance(table, SparseTable):
        raise MalformedMessageError(
            where="prefetch field 'table'", rule="must name a sparse table"
        )
    ids = message.tensors.get("0.ids")
    if ids is not None and ids.size > MAX_IDS:
        rule = f"has {ids.size:,} ids, and may have {MAX_IDS:,}"
        raise MalformedMessageError(where="tensor '0.ids'", rule=rule)
    rows = PartIds(message).read(0, table, packed=False)
    return PrefetchRequest(rank=rank, incarnation=incarnation, table=table, rows=rows)
