"""Which rows of a table would be evicted first: read, some places at a time.

A worker counts the rows by their keys (``tables.rows.evicting``), and lists those below one.
"""

from typing import TYPE_CHECKING, Any

from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.evicting import (
    BIN_BITS,
    KEY_BITS,
    AsOf,
    count_by_key,
    is_valued,
    latest_of,
)
from paramfleet_shared.values.ids import Rank, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["survey"]

MAX_PLACES = 1 << 18
"""Places, or rows where rows move, that one request looks at: milliseconds of an owner."""

_MAX_SHIFT = KEY_BITS - BIN_BITS
_END = 1 << KEY_BITS


async def survey(
    training: Training, owners: Owners, request: Request, store: TableStore
) -> Message:
    """Answer how many rows have which keys, or which rows have a key below one.

    Of places of a block, with how many blocks and places there are, the place behind those that
    were looked at, and rows of the table here.

    Raises:
        MalformedMessageError: if a field is wrong, or names no block of a table whose rows can
            be told apart.
        UnknownTableError: if the table wasn't declared.
        TablesDamagedError: if a change was applied in part.
        UnknownWorkerError: if the job has no such worker.
        FencedError: if a newer incarnation of the worker is known.
    """
    fields = Fields(request.message.fields, where="survey")
    rank, incarnation = Rank(fields.integer("rank")), fields.integer("incarnation")
    training.machine.check_whole()
    training.check_rank(rank)
    training.fence(rank, incarnation)
    if training.journal is not None:  # a server that went on from its disk may be steps behind
        await training.waits.wait(Step(fields.integer("step")), deadline=request.deadline)
    table, index = store.find(fields.text("table")), fields.integer("block")
    start, count = fields.integer("start"), fields.integer("count", most=MAX_PLACES)
    if not isinstance(table, SparseTable) or index >= len(table.blocks):
        raise MalformedMessageError(where="survey field 'block'", rule="names none of a table")
    if not is_valued(table.spec):
        rule = "is of a table whose rows have no value"
        raise MalformedMessageError(where="survey field 'table'", rule=rule)
    most = latest_of(table.spec)
    when = AsOf(fields.integer("now", most=most), fields.integer("before", most=most))
    below = fields.integer("below", most=_END) if fields.has("below") else None
    low = fields.integer("low", most=_END) if below is None else 0
    shift = fields.integer("shift", most=_MAX_SHIFT) if below is None else 0
    block = table.blocks[index]
    found: dict[str, NDArray[np.int64]] = {}
    following = start

    def look() -> None:
        nonlocal following
        following = block.rows.place_after(start, count)
        ids, keys = block.rows.valued(start, following - start, when)
        if below is None:
            found["counts"] = count_by_key(keys, low=low, shift=shift)
            return
        goes = keys < below
        found.update(ids=ids[goes], keys=keys[goes])

    await owners.run([Job(block.owner, block.work(count), look)])
    about: dict[str, Any] = {
        "rows": table.num_rows,
        "blocks": len(table.blocks),
        "places": block.rows.num_places,
        "next": following,
    }
    return Message(fields=about, tensors=found)
