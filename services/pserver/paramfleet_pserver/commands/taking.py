"""What a worker is sent in return for an exchange: rows that wait for it, taken and then read.

Rows are taken by their owners in the order of the exchanges; they are read later, and may be
newer by then.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.removing import News, news_of, release_reported
from paramfleet_pserver.core.geo.recorder import GeoRecorder, Reply
from paramfleet_pserver.requests.checked import ExchangePart, ExchangeRequest
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.parts import DensePart, SparsePart
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.tables.encoding import (
    Encoded,
    buffer_for,
    pack_ids,
    sort_within_shards,
)
from paramfleet_shared.tables.rows.batch import MARK_GROWN
from paramfleet_shared.tables.rows.ctr import NUM_SEEN
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.values.ids import Rank

__all__ = ["PartReply", "Taken", "TakingRows"]


@dataclass(kw_only=True, slots=True)
class PartReply:
    """What the worker receives of one table."""

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
    removed: NDArray[np.int64] | None = None
    """Ids whose copies the worker is to drop before it takes the rows."""
    refused: NDArray[np.int64] | None = None
    """Ids that it has sent and that got no row, whose copies it is to drop, too."""
    rows: Encoded


class TakingRows:
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
        self.news = News(np.empty(0, np.int64), np.empty(0, np.int64))

    def job(self) -> Job:
        """Return the work."""
        waiting = self._recorder.num_waiting(self._rank)
        return Job(self._block.owner, min(waiting, self._max_rows), self._act)

    def _act(self) -> None:
        reported = self._recorder.acknowledge(self._rank, self._ack)
        release_reported(self._block.rows, self._recorder, reported)
        self.reply = self._recorder.take(self._rank, max_rows=self._max_rows)
        self.news = news_of(self._block.rows, self.reply.rows)


class _ReplyRows:
    """The ids of a reply, sorted as they travel."""

    def __init__(self, taken: Sequence[TakingRows], num_shards: int, *, packs: bool) -> None:
        self.ids = np.concatenate([each.news.ids for each in taken])
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


class Taken:
    """What a worker is sent in return for an exchange, and how it is read.

    Args:
        store: The tables.
        owners: Who works on them.
        request: The exchange.
    """

    def __init__(self, store: TableStore, owners: Owners, request: ExchangeRequest) -> None:
        self._store = store
        self._owners = owners
        self._request = request
        self.blocks: dict[str, list[TakingRows]] = {}
        """Of each sparse table."""

    def jobs(self) -> list[Job]:
        """Return what takes the rows."""
        return [each.job() for taking in self.blocks.values() for each in taking]

    async def read(self) -> list[PartReply]:
        """Read what was taken, as the tables are now."""
        reads = (self._read(part) for part in self._request.parts)
        return list(await asyncio.gather(*reads))

    async def _read(self, part: ExchangePart) -> PartReply:
        table = part.table
        table.num_pulls += 1
        if isinstance(table, DenseTable):
            wire = part.answer_wire
            assert isinstance(part.content, DensePart), "of a dense table"
            where = slice(0, 0) if part.quiet else part.content.where
            reply = PartReply(rows=buffer_for((where.stop - where.start,), wire))
            await self._owners.run([table.pull_job(reply.rows, wire, where)])
            return reply
        assert isinstance(table, SparseTable), "a table is sparse or dense"
        wire = part.content.wire
        taken = self.blocks[table.spec.name]
        reply_rows = _ReplyRows(taken, self._store.num_shards, packs=wire != "float32")
        await self._owners.run([Job(0, len(reply_rows.ids), reply_rows.sort)])
        first, last = self._store.shards.start, self._store.shards.stop
        offsets = reply_rows.offsets[first : last + 1]
        width = table.spec.dim + (NUM_SEEN if table.spec.optimizer.num_counts else 0)
        buffer = buffer_for((len(reply_rows.ids), width), wire)
        rows = SparsePart(reply_rows.ids, offsets, buffer, wire)
        await self._owners.run(table.pull_jobs(rows, create=False))
        removed = np.concatenate([each.news.removed for each in taken])
        refused = await self._refused(table, part.content)
        return PartReply(
            refused=refused if len(refused) else None,
            removed=removed if len(removed) else None,
            batch=taken[0].reply.batch,
            more=any(each.reply.more for each in taken),
            ids=reply_rows.ids,
            packed=reply_rows.packed,
            offsets=offsets,
            rows=buffer,
        )

    async def _refused(
        self, table: SparseTable, part: SparsePart | DensePart
    ) -> NDArray[np.int64]:
        """Return which of the ids that were sent have no row, where there may be too many.

        Whoever asks again is answered the same, unless such an id has a row by then.
        """
        if not table.spec.entry.max_rows or not isinstance(part, SparsePart):
            return np.empty(0, np.int64)
        found: list[NDArray[np.int64]] = []

        def find(block: Block, some: SparsePart) -> None:
            lacks = block.rows.find(some.ids) < 0
            if some.marks is not None:
                lacks &= (some.marks == 0) | (some.marks == MARK_GROWN)
            found.append(some.ids[lacks])

        await self._owners.run(table.part_jobs(part, find))
        return np.concatenate([np.empty(0, np.int64), *found])
