"""Values of rows that a worker has the pservers write past their optimizers.

A write goes to every pserver, with or without rows, as every change does. Large ones are
divided: each piece is a change of its own, and has an effect wholly or not at all.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.sparse import SparseTable
from paramfleet.training.job import Job
from paramfleet_shared.net.wire.limits import most_written_rows
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.routing import route

__all__ = ["WrittenRows", "send_first_rows", "send_rows"]

WrittenRows = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Ids, int64 [n], each once, and the values of their rows, float32 [n, D]."""


async def send_rows(job: Job, table: SparseTable, rows: WrittenRows, *, step: int) -> None:
    """Write rows on all pservers.

    To be run on the communicator's loop, one at a time.

    Args:
        job: The worker's connections.
        table: One without an accessor.
        rows: Any number of them.
        step: Steps that this worker has taken.

    Raises:
        FleetError: the first error of a pserver; rows of pieces before may be written.
    """
    for some in _pieces(table, rows):
        await job.pservers.change("write", _messages(job, table, some, step=step))


async def send_first_rows(job: Job, tables: Iterable[SparseTable], *, step: int) -> None:
    """Write the first rows of tables that are new on the pservers.

    To be run on the communicator's loop. A table that was loaded, trained or given its first
    rows before stays as it is.

    Args:
        job: The worker's connections.
        tables: Those of the job.
        step: Steps that this worker has taken.

    Raises:
        FleetError: the first error of a pserver; a repeated call writes all of them.
    """
    for table in tables:
        pieces = [some for rows in table.first_rows for some in _pieces(table, rows)]
        for number, some in enumerate(pieces, start=1):
            about = {"only_if_new": True, "is_last": number == len(pieces)}
            messages = _messages(job, table, some, step=step, **about)
            answers = await job.pservers.change("write", messages)
            if not any(answer.fields["is_due"] for answer in answers):
                break


def _pieces(table: SparseTable, rows: WrittenRows) -> list[WrittenRows]:
    ids, values = rows
    num = most_written_rows(table.dim)
    starts = range(0, len(ids), num)
    return [(ids[start : start + num], values[start : start + num]) for start in starts]


def _messages(
    job: Job, table: SparseTable, rows: WrittenRows, *, step: int, **about: bool
) -> list[Message]:
    """Return one message a pserver, all of one new change."""
    placement = job.placement
    routed = route(rows[0], placement.num_shards)
    ordered = rows[1][routed.positions]
    fields = {**job.author.change(), "table": table.name, "step": step, **about}
    messages = []
    for server in range(placement.num_servers):
        part, bounds = RowIds(routed.ids, routed.offsets).of(placement.shards_of(server))
        tensors: dict[str, NDArray[Any]] = {"0.ids": routed.ids[part], "0.offsets": bounds}
        messages.append(Message(fields=fields, tensors=tensors | {"0.values": ordered[part]}))
    return messages
