"""Requests to subtract from rows what an export has of their ``delta_score``."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.changes import identity_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import check_array
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["DiscountRequest", "discount_request"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscountRequest:
    """What was written of the ``delta_score`` of rows."""

    identity: ChangeIdentity
    step: Step
    """Steps that the worker has taken."""
    table: SparseTable
    """One with an accessor."""
    rows: RowIds
    """Those that don't exist change nothing."""
    amounts: NDArray[np.float32]
    """Of each of them. [n]"""

    @property
    def rank(self) -> Rank:
        """Return whose request it is."""
        return Rank(self.identity.worker)


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
