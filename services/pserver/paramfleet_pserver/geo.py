"""GEO exchanges: a worker adds its differences and hears what the others changed.

The order that loses nothing: differences are added, then the ids are noted for the
other workers, then this worker's waiting ids are taken, then their rows are read.
A reader between the steps reads a newer row than it had to and hears of it again.
What was begun ends even if the request's deadline cuts its answer off.

A table's recorder lives on one owner thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.geo_recorder import GeoRecorder, Reply
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.requests import ExchangePart, ExchangeRequest
from paramfleet_pserver.tablestore import (
    Block,
    DenseTable,
    SparsePart,
    SparseTable,
    Table,
    TableStore,
)
from paramfleet_shared.ids import Rank
from paramfleet_shared.served_errors import GeoRuleError
from paramfleet_shared.tables.encoding import (
    Encoded,
    pack_ids,
    room_for,
    sort_within_shards,
)
from paramfleet_shared.tables.routing import route
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["GeoExchange", "PartReply", "check_rule"]

RECORDER_ROWS = 8
"""A recorder sorts its ids: by about so much an id costs more than a row."""

EXPORT_ROWS = 1 << 18
"""Rows whose ids are read at a time when a loaded table is announced."""


@dataclass(kw_only=True, slots=True)
class PartReply:
    """What the worker hears of one table."""

    batch: int = 0
    """To be acknowledged; 0 for a dense table, which is sent whole."""
    more: bool = False
    """Whether ids are waiting beyond these."""
    ids: NDArray[np.int64] | None = None
    """None for a dense table."""
    packed: NDArray[np.uint8] | None = None
    """The ids packed, if they are smaller so and the worker takes them."""
    offsets: NDArray[np.int64] | None = None
    """Bounds of this server's shards in ``ids``, where they are packed."""
    rows: Encoded


def check_rule(spec: TableSpec) -> None:
    """Pass if a table can be served in GEO.

    Raises:
        GeoRuleError: if its optimizer is another than ``sum``.
    """
    if spec.optimizer.rule != "sum":
        raise GeoRuleError(table=spec.name, rule=spec.optimizer.rule)


class GeoExchange:
    """The recorders of a job's sparse tables.

    Args:
        num_workers: Workers of the job.
        store: The tables.
        owners: Who works on them.
    """

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        self._num_workers = num_workers
        self._store = store
        self._owners = owners
        self._recorders: dict[str, GeoRecorder] = {}
        self._gone: set[Rank] = set()
        self._announced: dict[str, tuple[Block, ...]] = {}

    def begin(
        self, request: ExchangeRequest, parts: Sequence[ExchangePart]
    ) -> asyncio.Future[None]:
        """Add these parts' differences, and note them for the other workers.

        Args:
            request: What the parts are of.
            parts: Those not taken before.

        Returns:
            Done when the differences are added. It must not be cancelled.
        """
        jobs: list[Job] = []
        for part in parts:
            table = part.table
            jobs += table.update_jobs([part.content], lr=1.0, step=table.next_update())
        end = self._owners.start(jobs)
        when_done(end, partial(self._note, request.rank, parts))
        return end

    async def reply(self, request: ExchangeRequest) -> list[PartReply]:
        """Return what the worker is to hear now, table by table."""
        replies = await asyncio.gather(
            *(self._reply_of(request.rank, p) for p in request.parts)
        )
        return list(replies)

    async def announce_loaded(self) -> None:
        """Let every worker hear of every row that came from a checkpoint.

        May be called again: what was announced once is not announced twice, and
        what a cancelled call left out is made up for.
        """
        for table in self._store:
            if isinstance(table, SparseTable) and table.is_loaded:
                blocks = table.blocks
                if self._announced.get(table.spec.name) is not blocks:
                    await self._announce(table)
                    self._announced[table.spec.name] = blocks

    async def _announce(self, table: SparseTable) -> None:
        for block in table.blocks:
            for start in range(0, block.rows.num_rows, EXPORT_ROWS):
                reading = _Reading(block.rows, start)
                await self._owners.run([Job(block.owner, EXPORT_ROWS, reading.act)])
                self._owners.post(self._record_job(table, reading.ids, writer=None))

    def leave(self, rank: Rank) -> None:
        """Keep nothing for a worker any more."""
        self._gone.add(rank)
        for name, recorder in self._recorders.items():
            self._owners.post(Job(self._owner_of(name), 0, partial(recorder.leave, rank)))

    def _note(
        self, rank: Rank, parts: Sequence[ExchangePart], end: asyncio.Future[None]
    ) -> None:
        if end.exception() is not None:
            return
        for part in parts:
            part.table.version += 1
            if isinstance(part.content, SparsePart):
                ids = part.content.ids.copy()  # not a view that keeps the whole request
                self._owners.post(self._record_job(part.table, ids, writer=rank))

    async def _reply_of(self, rank: Rank, part: ExchangePart) -> PartReply:
        table = part.table
        table.num_pulls += 1
        if isinstance(table, DenseTable):
            wire = part.content.wire
            reply = PartReply(rows=room_for((table.num_rows,), wire))
            await self._owners.run([table.pull_job(reply.rows, wire)])
            return reply
        assert isinstance(table, SparseTable), "a table is sparse or dense"
        taken = _Taking(self._recorder_of(table), rank, part, self._store.num_shards)
        cost = RECORDER_ROWS * part.max_rows
        await self._owners.run([Job(self._owner_of(table.spec.name), cost, taken.act)])
        first, last = self._store.shards.start, self._store.shards.stop
        offsets = taken.offsets[first : last + 1]
        room = room_for((len(taken.ids), table.spec.dim), part.content.wire)
        rows = SparsePart(taken.ids, offsets, room, part.content.wire)
        await self._owners.run(table.pull_jobs(rows, create=False))
        return PartReply(
            batch=taken.reply.batch,
            more=taken.reply.more,
            ids=taken.ids,
            packed=taken.packed,
            offsets=offsets,
            rows=room,
        )

    def _record_job(self, table: Table, ids: NDArray[np.int64], *, writer: Rank | None) -> Job:
        recorder = self._recorder_of(table)
        act: Callable[[], None] = partial(recorder.record, ids, writer=writer)
        return Job(self._owner_of(table.spec.name), len(ids), act)

    def _recorder_of(self, table: Table) -> GeoRecorder:
        name = table.spec.name
        if name not in self._recorders:
            recorder = GeoRecorder(num_workers=self._num_workers)
            for rank in self._gone:
                recorder.leave(rank)
            self._recorders[name] = recorder
        return self._recorders[name]

    def _owner_of(self, name: str) -> int:
        return sum(name.encode()) % len(self._owners)


class _Taking:
    """Takes a reply and sorts it by shard, on the recorder's thread."""

    def __init__(
        self, recorder: GeoRecorder, rank: Rank, part: ExchangePart, num_shards: int
    ) -> None:
        self._recorder = recorder
        self._rank = rank
        self._part = part
        self._num_shards = num_shards
        self.reply = Reply(batch=0, ids=np.empty(0, np.int64), more=False)
        self.ids = self.reply.ids
        self.offsets = np.zeros(num_shards + 1, np.int64)
        self.packed: NDArray[np.uint8] | None = None

    def act(self) -> None:
        self._recorder.acknowledge(self._rank, self._part.ack)
        self.reply = self._recorder.take(self._rank, max_rows=self._part.max_rows)
        routed = route(self.reply.ids, self._num_shards)
        self.ids, self.offsets = routed.ids, routed.offsets
        if self._part.content.wire != "float32":
            self.ids = self.ids[sort_within_shards(self.ids, self.offsets)]
            self.packed = pack_ids(self.ids, self.offsets)


class _Reading:
    """Copies the ids of some rows, on their owner's thread."""

    def __init__(self, rows: SparseShard, start: int) -> None:
        self._rows = rows
        self._start = start
        self.ids = np.empty(0, np.int64)

    def act(self) -> None:
        self.ids, _, _ = self._rows.export(self._start, EXPORT_ROWS)
