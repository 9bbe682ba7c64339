"""Exchanges: a worker adds its differences and hears what the others changed.

In LocalSGD a dense table's optimizer takes the differences instead, each worker's divided by
the number of workers there are.

The order that loses nothing: differences are added, then their rows are noted for the
other workers, then this worker's waiting rows are taken, then they are read. A reader
between the steps reads a newer row than it had to and hears of it again. What was begun
ends even if the request's deadline cuts its answer off.

A difference may be divided by how many workers share what it changes, to a power that its
worker names. A dense table is shared by all; a row by those that changed it at the same time,
so that progress of one worker alone is added whole. The worker is told of its own rows, too,
where less was added than it sent, or where the table rounds what it keeps.

Each block of a table has a recorder, which lives on the block's owner thread and counts
rows as the block does. All of a table make their replies together, so that one number
acknowledges them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.blocks import Block
from paramfleet_pserver.core.geo_recorder import GeoRecorder, Reply
from paramfleet_pserver.core.pacing import Pace, RateGuard
from paramfleet_pserver.core.sharers import Sharers
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.parts import DensePart, Guarded, SparsePart, is_counted, square_of
from paramfleet_pserver.requests import ExchangePart, ExchangeRequest, Mode
from paramfleet_pserver.tables import DenseTable, SparseTable, Table
from paramfleet_pserver.tablestore import TableStore
from paramfleet_shared.ids import Rank, Step
from paramfleet_shared.served_errors import GeoRuleError
from paramfleet_shared.tables.encoding import (
    Encoded,
    pack_ids,
    room_for,
    sort_within_shards,
)
from paramfleet_shared.tables.routing import route
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["GeoExchange", "PartReply", "check_rule"]

ANNOUNCED_ROWS = 1 << 18
"""Rows of a table that are announced at a time."""


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


def check_rule(spec: TableSpec, mode: Mode) -> None:
    """Pass if a table can be served in a mode.

    Raises:
        GeoRuleError: if workers run its optimizer, and its own is another than ``sum``.
    """
    adds_up = mode == "geo" or (mode == "localsgd" and spec.kind == "sparse")
    if adds_up and not spec.optimizer.record.adds:
        raise GeoRuleError(table=spec.name, rule=spec.optimizer.rule)


class GeoExchange:
    """The recorders of a job's sparse tables.

    Args:
        num_workers: Workers that take part from the start.
        store: The tables.
        owners: Who works on them.
    """

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        self._ranks = {Rank(rank) for rank in range(num_workers)}
        self._untold: set[Rank] = set()
        self._store = store
        self._owners = owners
        self._recorders: dict[str, tuple[_Recorded, ...]] = {}
        self._announced: dict[str, tuple[Block, ...]] = {}

    def begin(
        self, request: ExchangeRequest, parts: Sequence[ExchangePart], *, share: float = 1.0
    ) -> asyncio.Future[None]:
        """Add these parts' differences, and note them for the other workers.

        Args:
            request: What the parts are of.
            parts: Those not taken before.
            share: What the differences of dense tables are multiplied by.

        Returns:
            Done when the differences are added. It must not be cancelled.
        """
        jobs: list[Job] = []
        for part in parts:
            table = part.table
            content = part.content
            if isinstance(table, DenseTable) and self._is_guarded(part):
                pace, num_steps = Pace(len(self._ranks), part.damping), part.guarded_steps
                step = table.number_of(content)
                jobs += table.guarded_jobs(
                    content, lr=part.lr, step=step, pace=pace, num_steps=num_steps
                )
                continue
            if isinstance(content, DensePart):
                content = content._replace(scale=share * self._weight(part.damping))
            elif part.damping or self._is_guarded(part):
                content = content._replace(weights=np.ones(len(content.ids), np.float32))
                jobs += self._weigh_jobs(part, content, request)
            number = table.number_of(content)
            jobs += table.update_jobs([content], lr=part.lr, step=number)
            if isinstance(content, SparsePart):
                jobs += self._record_jobs(table, content, request.rank)
        end = self._owners.start(jobs)
        when_done(end, partial(_count_versions, parts))
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
        for block, recorder, *_ in self._recorded(table):
            for rows in _all_rows(block):
                act = partial(recorder.record, rows, writer=None)
                await self._owners.run([Job(block.owner, len(rows), act)])

    def join(self, rank: Rank) -> None:
        """Note for a worker what others change from now on; ``tell_all`` does the rest."""
        self._ranks.add(rank)
        self._untold.add(rank)
        for recorded in self._recorders.values():
            for each in recorded:
                self._owners.post(Job(each.block.owner, 0, partial(each.join, rank)))

    async def tell_all(self, rank: Rank) -> None:
        """Let a worker that joined hear of every row that there is already.

        May be called again: what a cancelled call left out is made up for, and a row that
        waits already does so once.
        """
        if rank not in self._untold:
            return
        for table in self._store:
            if isinstance(table, SparseTable):
                for block, recorder, *_ in self._recorded(table):
                    for rows in _all_rows(block):
                        act = partial(recorder.tell, rank, rows)
                        await self._owners.run([Job(block.owner, len(rows), act)])
        self._untold.discard(rank)

    def leave(self, rank: Rank) -> None:
        """Keep nothing for a worker any more."""
        self._ranks.discard(rank)
        for recorded in self._recorders.values():
            for each in recorded:
                self._owners.post(Job(each.block.owner, 0, partial(each.leave, rank)))

    async def _reply_of(self, rank: Rank, part: ExchangePart) -> PartReply:
        table = part.table
        table.num_pulls += 1
        if isinstance(table, DenseTable):
            wire = part.answer_wire
            assert isinstance(part.content, DensePart), "of a dense table"
            where = slice(0, 0) if part.quiet else part.content.where
            reply = PartReply(rows=room_for((where.stop - where.start,), wire))
            await self._owners.run([table.pull_job(reply.rows, wire, where)])
            return reply
        assert isinstance(table, SparseTable), "a table is sparse or dense"
        wire = part.content.wire
        max_rows = max(1, part.max_rows // len(table.blocks))
        taken = [
            _Taking(block, recorder, rank, part.ack, max_rows)
            for block, recorder, *_ in self._recorded(table)
        ]
        await self._owners.run([each.job() for each in taken])
        told = _Told(taken, self._store.num_shards, packs=wire != "float32")
        await self._owners.run([Job(0, len(told.ids), told.sort)])
        first, last = self._store.shards.start, self._store.shards.stop
        offsets = told.offsets[first : last + 1]
        room = room_for((len(told.ids), table.spec.dim), wire)
        rows = SparsePart(told.ids, offsets, room, wire)
        await self._owners.run(table.pull_jobs(rows, create=False))
        return PartReply(
            batch=taken[0].reply.batch,
            more=any(each.reply.more for each in taken),
            ids=told.ids,
            packed=told.packed,
            offsets=offsets,
            rows=room,
        )

    def _is_guarded(self, part: ExchangePart) -> bool:
        return part.guarded_steps > 0 and len(self._ranks) > 1

    def _weight(self, damping: float) -> float:
        """Return what a difference of a dense table is multiplied by."""
        return float(max(1, len(self._ranks)) ** -damping)

    def _weigh_jobs(
        self, part: ExchangePart, content: SparsePart, request: ExchangeRequest
    ) -> list[Job]:
        """Weigh rows by their sharers; to run before the jobs that add to them."""
        assert isinstance(part.table, SparseTable), "its content is"
        jobs = []
        for recorded in self._recorded(part.table):
            some = content.part(content.within(recorded.block.shards))
            act = partial(
                recorded.weigh,
                some,
                writer=request.rank,
                step=request.step,
                pace=Pace(max(1, len(self._ranks)), part.damping),
                guarded_steps=part.guarded_steps if self._is_guarded(part) else 0,
            )
            jobs.append(Job(recorded.block.owner, len(some.ids), act))
        return jobs

    def _record_jobs(self, table: Table, part: SparsePart, writer: Rank) -> list[Job]:
        """Note rows; to run after the jobs that add to them, in one go with them."""
        assert isinstance(table, SparseTable), "the part is"
        jobs = []
        for recorded in self._recorded(table):
            some = part.part(part.within(recorded.block.shards))
            if count := len(some.ids):
                act = partial(recorded.record, some, writer=writer)
                jobs.append(Job(recorded.block.owner, count, act))
        return jobs

    def _recorded(self, table: SparseTable) -> tuple["_Recorded", ...]:
        """Return a table's blocks with their recorders, new ones after a load."""
        name = table.spec.name
        former = self._recorders.get(name, ())
        if not former or former[0].block is not table.blocks[0]:
            last = max((each.recorder.last_batch for each in former), default=0)
            recorders = [GeoRecorder(num_workers=0, last_batch=last) for _ in table.blocks]
            self._recorders[name] = tuple(
                _Recorded(block, recorder, Sharers(), guard)
                for block, recorder, guard in zip(
                    table.blocks, recorders, table.guards, strict=True
                )
            )
            for recorded in self._recorders[name]:
                for rank in sorted(self._ranks):
                    recorded.join(rank)
        return self._recorders[name]


class _Recorded(NamedTuple):
    """A block, what each worker hasn't seen of it, and who changes the same rows of it."""

    block: Block
    recorder: GeoRecorder
    sharers: Sharers
    guard: RateGuard

    def join(self, rank: Rank) -> None:
        self.recorder.join(rank)
        self.sharers.join(rank)
        self._count_bytes()

    def leave(self, rank: Rank) -> None:
        self.recorder.leave(rank)
        self.sharers.leave(rank)
        self._count_bytes()

    def _count_bytes(self) -> None:
        """Let new rows of the block need memory for what is kept of them here, too."""
        beside = self.recorder.row_bytes + self.sharers.row_bytes
        self.block.rows.count_beside(beside)

    def weigh(
        self, part: SparsePart, *, writer: Rank, step: Step, pace: Pace, guarded_steps: float
    ) -> None:
        """Set the weights of rows that are about to change, and end the writer's period."""
        assert part.weights is not None, "they are to be set"
        counts = self.sharers.count(self.block.rows.find(part.ids), writer=writer, step=step)
        self._count_bytes()
        scale, power = 1.0, pace.power
        if guarded_steps and len(part.ids):
            guarded = Guarded(self.guard, pace, guarded_steps)
            scale, power = guarded.stride(square_of(part))
        part.weights[:] = np.float32(scale) / counts.astype(np.float32) ** np.float32(power)

    def record(self, part: SparsePart, *, writer: Rank) -> None:
        """Note rows that changed; the writer hears of those that aren't what it holds."""
        rows = self.block.rows.find(part.ids)
        is_rounded = self.block.rows.spec.storage != "float32"
        self.recorder.record(rows, writer=None if is_rounded else writer)
        if part.weights is not None:
            self.recorder.tell(writer, rows[part.weights < 1.0])
            self.sharers.note(rows, writer=writer)


def _all_rows(block: Block) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of a block's rows, some at a time: its owner has others to serve."""
    for start in range(0, block.rows.num_rows, ANNOUNCED_ROWS):
        yield np.arange(start, min(start + ANNOUNCED_ROWS, block.rows.num_rows))


def _count_versions(parts: Sequence[ExchangePart], end: asyncio.Future[None]) -> None:
    if end.exception() is None:
        for part in parts:
            part.table.version += is_counted(part.content)


class _Taking:
    """Takes a block's part of a reply, on its owner's thread."""

    def __init__(
        self, block: Block, recorder: GeoRecorder, rank: Rank, ack: int, max_rows: int
    ) -> None:
        self._block = block
        self._recorder = recorder
        self._rank = rank
        self._ack = ack
        self._max_rows = max_rows
        self.reply = Reply(batch=0, rows=np.empty(0, np.int64), more=False)
        self.ids = np.empty(0, np.int64)

    def job(self) -> Job:
        """Return the work."""
        waiting = self._recorder.num_waiting(self._rank)
        return Job(self._block.owner, min(waiting, self._max_rows), self._act)

    def _act(self) -> None:
        self._recorder.acknowledge(self._rank, self._ack)
        self.reply = self._recorder.take(self._rank, max_rows=self._max_rows)
        self.ids = self._block.rows.ids()[self.reply.rows]


class _Told:
    """The ids of a reply, sorted as they travel."""

    def __init__(self, taken: Sequence[_Taking], num_shards: int, *, packs: bool) -> None:
        self.ids = np.concatenate([each.ids for each in taken])
        self.offsets = np.zeros(num_shards + 1, np.int64)
        self.packed: NDArray[np.uint8] | None = None
        self._packs = packs

    def sort(self) -> None:
        """Sort the ids by shard, and pack them if they are to be."""
        routed = route(self.ids, len(self.offsets) - 1)
        self.ids, self.offsets = routed.ids, routed.offsets
        if self._packs:
            self.ids = self.ids[sort_within_shards(self.ids, self.offsets)]
            self.packed = pack_ids(self.ids, self.offsets)
