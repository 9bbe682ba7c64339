"""Rows that are on disk, brought into memory before a worker needs them: some at a time.

A slice of ids takes some milliseconds of a shard's owner, and one request has its turn after
the other, so that whatever else is asked of that owner waits for one slice.
"""

import asyncio
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.prefetch_requests import prefetch_request
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.rows.cold import Fetch

__all__ = ["Prefetches"]

_ANSWER_S = 0.5
"""Seconds before the deadline at which the answer says how far it came, or a quarter of all."""


class Prefetches:
    """Serves ``prefetch``. Used from one event loop.

    Args:
        owners: Who work on the shards.
        clock: By whose time deadlines are meant.
    """

    def __init__(self, owners: Owners, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock
        self._turn = asyncio.Lock()
        """Held for one slice of each owner."""

    async def serve(self, training: Training, request: Request, store: TableStore) -> Message:
        """Bring rows into memory; answer how many came, and of how many ids none was tried.

        ``tier`` says whether any row of the table is on disk here. Where none is, nothing is
        done.

        Raises:
            MalformedMessageError: if a field, a tensor or the bounds of ids are wrong, the
                table is dense, or there are too many ids.
            UnknownTableError: if the table wasn't declared.
            RowShapeError: if a tensor's dtype or shape is wrong.
            TablesDamagedError: if a change was applied in part.
            UnknownWorkerError: if the job has no such worker.
            FencedError: if a newer incarnation of the worker is known.
            FleetError: if a disk refuses.
        """
        wanted = prefetch_request(request.message, store)
        training.machine.check_whole()
        training.check_rank(wanted.rank)
        training.fence(wanted.rank, wanted.incarnation)
        table, rows = wanted.table, wanted.rows
        left = {
            index: own
            for index, block in enumerate(table.blocks)
            if block.rows.cold.rows and len(own := rows.ids[rows.within(block.shards)])
        }
        until = self._until(request.deadline)
        num_brought = num_left = 0
        is_first = True
        while left and self._clock.monotonic() < until:
            async with self._turn:
                done = await self._slice(table, left, is_first=is_first)
            is_first = False
            for index, fetch in done.items():
                num_brought += fetch.brought
                num_left += fetch.left
                left[index] = left[index][fetch.taken :]
            left = {index: own for index, own in left.items() if len(own)}
        num_left += sum(len(own) for own in left.values())
        has_tier = any(block.rows.cold.rows for block in table.blocks)
        return Message(fields={"tier": has_tier, "brought": num_brought, "left": num_left})

    async def _slice(
        self, table: SparseTable, left: dict[int, NDArray[np.int64]], *, is_first: bool
    ) -> dict[int, Fetch]:
        """Look for the first ids of each block; return what became of them.

        Args:
            table: Whose rows.
            left: The ids of each block; the first slice puts them in the order of the disk.
            is_first: Whether this is the first one.
        """
        done: dict[int, Fetch] = {}

        def fetch(index: int, ids: NDArray[np.int64]) -> None:
            rows = table.blocks[index].rows
            if is_first:
                left[index] = ids = rows.fetch_order(ids)
            done[index] = rows.fetch(ids)

        await self._owners.run(
            Job(
                table.blocks[index].owner,
                table.blocks[index].work(len(ids)),
                partial(fetch, index, ids),
            )
            for index, ids in left.items()
        )
        return done

    def _until(self, deadline: float | None) -> float:
        """Return when a request is to be answered that has a deadline, or none."""
        if deadline is None:
            return float("inf")
        left_s = deadline - self._clock.monotonic()
        return deadline - min(_ANSWER_S, left_s / 4)
