"""Rows that pservers have on disk, brought into their memory before a batch needs them.

No value changes by it, and nothing waits for it but who asks to. What a worker asks for is
sent in requests of some ids, one behind the other.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.training.job import Job
from paramfleet.training.modes.prefetching.ahead import Wanted
from paramfleet.training.modes.prefetching.tiers import Tiers
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["DiskRows", "Prefetched", "PrefetchedRows"]

MAX_IDS = 1 << 18
"""Of one request to all pservers: 2 MiB. Of many ids several are on one page of a disk, or on
pages beside each other, which are read at once."""

MOST_WAITING = 4
"""Batches whose rows wait to be asked for; those behind are read by their pulls."""


class Prefetched(NamedTuple):
    """What became of rows that were asked for ahead, on all pservers together."""

    brought: int = 0
    """Rows that were read from disk into memory."""
    left: int = 0
    """Ids that weren't looked for: half of the rows that fit into memory wait for their use
    already, or the time was over. Rows on disk are read when they are pulled."""
    on_disk: bool = False
    """Whether the table has rows on disk."""


class PrefetchedRows:
    """Rows on their way from disk into the pservers' memory; made by ``fleet.prefetch_rows``.

    Args:
        future: Of the requests; None if there are none.
    """

    def __init__(self, future: "Future[Prefetched] | None") -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        """Whether nothing is on its way."""
        return self._future is None or self._future.done()

    def wait(self, timeout_s: float | None = None) -> Prefetched:
        """Return what became of them, when that is known.

        Args:
            timeout_s: Seconds to wait at most; the requests go on after that. None waits for
                their own deadline, ``call_timeout_s`` for each 262,144 ids.

        Raises:
            TimeoutError: if it takes longer.
            FleetError: if a pserver refuses or doesn't answer in time, or the job failed.
        """
        if self._future is None:
            return Prefetched()
        try:
            return self._future.result(timeout_s)
        except CancelledError:  # by ``cancel``, or as the worker leaves
            return Prefetched()

    def cancel(self) -> None:
        """Ask for no more of them; what is on its way at pservers goes on."""
        if self._future is not None:
            self._future.cancel()


class DiskRows:
    """Asks the pservers of a job. The training thread uses it.

    Args:
        job: The worker's connections.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tiers = Tiers(job.placement.num_servers)
        self._turns: dict[str, asyncio.Lock] = {}
        """Of each table: what was asked for first comes first."""
        self._under_way: list[Future[Prefetched]] = []

    def prefetch(self, table: str, ids: NDArray[np.int64]) -> "Future[Prefetched]":
        """Have rows brought into memory, also if no pserver had some on disk a moment ago.

        Args:
            table: A sparse one.
            ids: int64 [n].
        """
        return self._submit(table, ids, asks_all=True)

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Have rows of a batch to come brought into memory, if that may be of use."""
        if sum(not each.done() for each in self._under_way) >= MOST_WAITING * len(wanted):
            return
        for table, rows, _ in wanted:
            if self._may_have(table.name):
                self._submit(table.name, rows.ids, asks_all=False)

    def cancel(self) -> None:
        """Ask for nothing more."""
        for each in self._under_way:
            each.cancel()
        self._under_way = []

    def _may_have(self, table: str) -> bool:
        now = self._job.communicator.clock.monotonic()
        return bool(self._tiers.servers(table)) or self._tiers.is_due(table, now)

    def _submit(
        self, table: str, ids: NDArray[np.int64], *, asks_all: bool
    ) -> "Future[Prefetched]":
        bringing = self._bring(table, ids, asks_all=asks_all)
        future = self._job.communicator.submit(bringing)
        self._under_way = [each for each in self._under_way if not each.done()]
        self._under_way.append(future)
        return future

    async def _bring(self, table: str, ids: NDArray[np.int64], *, asks_all: bool) -> Prefetched:
        """Ask for rows, some at a time.

        Args:
            table: Theirs.
            ids: int64 [n].
            asks_all: Whether pservers without rows on disk are asked whether they have some
                by now, however lately they said that they have none.

        Raises:
            FleetError: the first error of a pserver.
        """
        clock, brought, left = self._job.communicator.clock, 0, 0
        async with self._turns.setdefault(table, asyncio.Lock()):
            knows_all = len(self._tiers.servers(table)) == self._job.placement.num_servers
            asks = asks_all and (not ids.size or not knows_all)
            if asks or self._tiers.is_due(table, clock.monotonic()):
                await self._ask(table, np.empty(0, np.int64))
            for start in range(0, len(ids), MAX_IDS):
                if not self._tiers.servers(table):
                    break
                some = await self._ask(table, ids[start : start + MAX_IDS])
                brought, left = brought + some.brought, left + some.left
                if some.left:  # no more may wait, or the disk is slow
                    left += max(0, len(ids) - start - MAX_IDS)
                    break
        return Prefetched(brought, left, bool(self._tiers.servers(table)))

    async def _ask(self, table: str, ids: NDArray[np.int64]) -> Prefetched:
        """Ask all pservers once; those without rows on disk get no ids."""
        job, placement = self._job, self._job.placement
        unique, _, offsets = partition(ids, placement.num_shards)
        rows, asked = RowIds(unique, offsets), set(self._tiers.servers(table))
        fields = {**job.author.fields(), "table": table}
        messages = []
        for server in range(placement.num_servers):
            part, bounds = rows.of(placement.shards_of(server))
            if server not in asked:
                part, bounds = slice(0, 0), np.zeros_like(bounds)
            tensors = {"0.ids": unique[part], "0.offsets": bounds}
            messages.append(Message(fields=fields, tensors=tensors))
        answers = await job.pservers.call("prefetch", messages)
        now = job.communicator.clock.monotonic()
        for server, answer in enumerate(answers):
            self._tiers.note(table, server, now, has=bool(answer.fields["tier"]))
        return Prefetched(
            sum(int(answer.fields["brought"]) for answer in answers),
            sum(int(answer.fields["left"]) for answer in answers),
        )
