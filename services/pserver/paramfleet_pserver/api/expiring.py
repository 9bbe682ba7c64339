"""Which rows of a table with an accessor have expired: read, some places at a time."""

from typing import TYPE_CHECKING, Any

from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.bounds import MAX_DAY
from paramfleet_shared.values.ids import Rank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["list_expired"]

MAX_PLACES = 1 << 18
"""That one request looks at: some milliseconds of an owner."""


async def list_expired(
    training: Training, owners: Owners, request: Request, store: TableStore
) -> Message:
    """Answer with the ids of rows that have expired, and how many blocks and places there are.

    Raises:
        MalformedMessageError: if a field is wrong, or names no block of a sparse table.
        UnknownTableError: if the table wasn't declared.
        TablesDamagedError: if a change was applied in part.
        UnknownWorkerError: if the job has no such worker.
        FencedError: if a newer incarnation of the worker is known.
    """
    fields = Fields(request.message.fields, where="expired")
    rank, incarnation = Rank(fields.integer("rank")), fields.integer("incarnation")
    training.machine.check_whole()
    training.check_rank(rank)
    training.fence(rank, incarnation)
    table, index = store.find(fields.text("table")), fields.integer("block")
    start, count = fields.integer("start"), fields.integer("count", most=MAX_PLACES)
    day = fields.integer("day", most=MAX_DAY)
    if not isinstance(table, SparseTable) or index >= len(table.blocks):
        raise MalformedMessageError(where="expired field 'block'", rule="names none of a table")
    block = table.blocks[index]
    found: list[NDArray[np.int64]] = []

    def look() -> None:
        found.append(block.rows.expired(start, count, day=day))

    await owners.run([Job(block.owner, count, look)])
    about: dict[str, Any] = {"blocks": len(table.blocks), "places": block.rows.num_slots}
    return Message(fields=about, tensors={"ids": found[0]})
