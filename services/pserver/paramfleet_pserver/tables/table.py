"""One table on this server: its shards, and who owns them.

Nothing here waits: a table says which jobs an operation takes, one for each owner, and
the caller hands them over.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_pserver.core.pacing import Pace, RateGuard, guard_facts, is_guarded
from paramfleet_pserver.core.pulled import PulledIds
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.capacity import TableCapacity, Wanted
from paramfleet_pserver.tables.known_ids import KnownIds
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.parts import (
    DensePart,
    Guarded,
    SetValues,
    SparsePart,
    Stepping,
    Update,
    is_counted,
    pull_rows,
    push_guarded_rows,
    push_guarded_values,
    push_rows,
    push_values,
    read_values,
    write_rows,
)
from paramfleet_pserver.tables.shard_loads import COUNTED_ROWS, RowCounter, ShardUse, busiest
from paramfleet_shared.discovery.placement import range_of_shard
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.encoding import Encoded, WireDtype
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.cold import ColdRows
from paramfleet_shared.tables.rows.evicting import Worths, is_valued
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.spans import MissedUpdates, union

__all__ = ["QUANTILES", "DenseTable", "SparseTable", "Table"]

VALUES_PER_ROW = 64
"""Dense values that cost about as much as one sparse row: what a cache miss streams."""
QUANTILES = (0.1, 0.5, 0.9)
"""Of the ages and scores of rows."""

SAMPLE = 1024
"""Rows of a block that are looked at for them."""


class Table(ABC):
    """What sparse and dense tables have in common.

    Args:
        spec: The table.
        hosted: This server's shards, by the numbers they have in the job.
    """

    def __init__(self, spec: TableSpec, hosted: range) -> None:
        self.spec = spec
        self.hosted = hosted
        self.use = ShardUse(len(hosted))
        self.version = 0
        """Pushes (sync: steps) applied in this job."""
        self.num_updates = 0
        """Pushes or steps begun in all, those before a checkpoint included."""
        self.num_pulls = 0
        self.num_pushes = 0
        self.is_loaded = False
        """Whether the rows came from a checkpoint."""
        self.is_assigned = False
        """Whether a worker gave the values, of a sparse table the first ones."""
        self.writes = 0
        """How often it was written to past its optimizer, where the mode counts that."""
        self.last_write = ""
        """By what it was last, as a person reads it."""
        self.guards: Sequence[RateGuard] = ()
        """Of the table's parts, each with one owner."""

    @property
    def is_new(self) -> bool:
        """Return whether the table was neither loaded nor given values nor stepped."""
        return not (self.is_loaded or self.is_assigned or self.num_updates)

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Return the rows (dense: values) that this server holds."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Return the memory they take."""

    @property
    def num_admitted(self) -> int:
        """Return how many ids the table's entry gave a row."""
        return 0

    @property
    def num_refused(self) -> int:
        """Return how often it gave an id none."""
        return 0

    @property
    def num_removed(self) -> int:
        """Return how many rows were removed."""
        return 0

    @abstractmethod
    def update_jobs(self, parts: "Sequence[SparsePart | DensePart]", by: Stepping) -> list[Job]:
        """Apply one update made of workers' parts, in this order.

        Args:
            parts: Of the table's kind; at least one.
            by: How the table steps.
        """

    def paced_jobs(
        self, part: "SparsePart | DensePart", by: Stepping, *, pace: Pace
    ) -> list[Job]:
        """Apply one update made of one worker's part, as far as the pace lets it.

        Args:
            part: Of the table's kind.
            by: How the table steps.
            pace: Of the update.
        """
        if pace.workers == 1 or not is_guarded(self.spec.optimizer):
            return self.update_jobs([part], by._replace(lr=by.lr * pace.share))
        return self.guarded_jobs(part, by, pace=pace)

    @abstractmethod
    def guarded_jobs(
        self, part: "SparsePart | DensePart", by: Stepping, *, pace: Pace
    ) -> list[Job]:
        """Apply one update as ``paced_jobs`` does, with a look at its gradients."""

    @abstractmethod
    def busiest_shards(self) -> list[dict[str, Any]]:
        """Return the shards here that are used most, the busiest first."""

    def adopt(self, other: "Table") -> None:
        """Take the rows and the age of a table of the same spec, as after a load."""
        self.num_updates = other.num_updates
        self.is_loaded = other.is_loaded

    def next_update(self) -> int:
        """Count an update, and return its number from 1."""
        self.num_updates += 1
        return self.num_updates

    def number_of(self, part: "SparsePart | DensePart") -> int:
        """Return the number of the update that a part makes; its pieces have one together."""
        if not isinstance(part, DensePart):
            return self.next_update()
        if not part.is_update:
            return self.num_updates
        if part.update is None:
            return self.next_update()
        if not part.update.number:
            part.update.number = self.next_update()
        return part.update.number

    @property
    def tier(self) -> str:
        """Return where rows are: ``memory``, or ``memory+disk``."""
        return "memory"

    def cold_facts(self) -> dict[str, Any]:
        """Return what is on disk, where anything is."""
        return {}

    def worths(self) -> dict[str, Any]:
        """Return how old rows are, and their scores: of a sample, by quantiles; if any have."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "admitted": self.num_admitted,
            "refused": self.num_refused,
            "removed": self.num_removed,
            "pulls": self.num_pulls,
            "pushes": self.num_pushes,
            "version": self.version,
            **guard_facts(self.guards),
            "tier": self.tier,
            "shards": self.busiest_shards(),
            **self.worths(),
            **self.cold_facts(),
        }


class SparseTable(Table):
    """This server's shards of a sparse table.

    Args:
        spec: The table.
        hosted: This server's shards, by the numbers they have in the job.
        blocks: Of each owner.
    """

    def __init__(self, spec: TableSpec, hosted: range, blocks: tuple[Block, ...]) -> None:
        super().__init__(spec, hosted)
        self.pulled = PulledIds(spec.name)
        self.known = KnownIds(spec.name)
        self.blocks = blocks
        self._capacity = TableCapacity(self.blocks)
        self._counters = self._new_counters()
        self.guards = [RateGuard() for _ in self.blocks]
        self._samples: dict[int, Worths] = {}
        """Of each block's rows, the latest."""

    def sample(self, owners: Owners) -> None:
        """Have some rows looked at, for ``worths``; if they have a value."""
        if not is_valued(self.spec):
            return
        for index, block in enumerate(self.blocks):
            owners.post(Job(block.owner, SAMPLE, partial(self._sample, index)))

    def _sample(self, index: int) -> None:
        self._samples[index] = self.blocks[index].rows.sample(SAMPLE)

    @override
    def worths(self) -> dict[str, Any]:
        samples = list(self._samples.values())
        found = {}
        for name in Worths._fields:
            numbers = np.concatenate([np.empty(0), *(getattr(each, name) for each in samples)])
            if numbers.size:
                quantiles = np.quantile(numbers, QUANTILES)
                found[name] = [round(float(each), 4) for each in quantiles]
        return found

    @property
    @override
    def tier(self) -> str:
        return "memory+disk" if self._cold() else "memory"

    @override
    def cold_facts(self) -> dict[str, Any]:
        cold = self._cold()
        if not cold:
            return {}
        names = ["rows", "wanted", "read", "written", "dropped", "full", "file_bytes"]
        names += ["prefetched", "prefetched_used"]
        facts = {f"cold_{name}": sum(getattr(each, name) for each in cold) for name in names}
        return {**facts, "cold_engine": cold[0].engine}

    def _cold(self) -> list[ColdRows]:
        """Return what each block has on disk, of those that have anything there."""
        return [block.rows.cold for block in self.blocks if block.rows.cold.engine]

    @property
    @override
    def num_admitted(self) -> int:
        deciding = (block.rows.admission for block in self.blocks)
        return sum(each.num_admitted for each in deciding if each is not None)

    @property
    @override
    def num_refused(self) -> int:
        deciding = (block.rows.admission for block in self.blocks)
        return sum(each.num_refused for each in deciding if each is not None)

    @property
    @override
    def num_removed(self) -> int:
        return sum(block.rows.num_removed for block in self.blocks)

    @property
    @override
    def num_rows(self) -> int:
        return sum(block.rows.num_rows for block in self.blocks)

    @property
    @override
    def num_bytes(self) -> int:
        return sum(block.rows.num_bytes for block in self.blocks)

    @override
    def adopt(self, other: Table) -> None:
        super().adopt(other)
        assert isinstance(other, SparseTable), "of one spec"
        self.blocks = other.blocks
        self.guards = [RateGuard() for _ in self.blocks]
        self._counters = self._new_counters()
        self._capacity.replace(self.blocks)

    def wanted_by(self, part: SparsePart) -> Wanted:
        """Return what room a part may need that creates rows."""
        return Wanted(self._capacity, part)

    @override
    def busiest_shards(self) -> list[dict[str, Any]]:
        rows = np.concatenate([counter.rows for counter in self._counters])
        sizes = [
            counter.rows * (block.rows.num_bytes / max(1, block.rows.num_rows))
            for block, counter in zip(self.blocks, self._counters, strict=True)
        ]
        return busiest(
            self.hosted.start, rows, np.concatenate(sizes).astype(np.int64), self.use
        )

    def count_jobs(self) -> list[Job]:
        """Count new rows by shard, some at a time; there is none left where no job is."""
        jobs = []
        for (owner, _, rows), counter in zip(self.blocks, self._counters, strict=True):
            if left := counter.num_left(rows):
                count = partial(counter.count, rows)
                jobs.append(Job(owner, min(left, COUNTED_ROWS), count))
        return jobs

    def pull_jobs(self, part: SparsePart, *, create: bool) -> list[Job]:
        """Read rows into ``part.rows``, as they are to travel.

        With ``create``, unknown ids become rows.
        """
        self.use.pull(part.offsets)
        jobs = []
        for block in self.blocks:
            where = part.within(block.shards)
            if count := where.stop - where.start:
                own = part.part(where)
                read = partial(pull_rows, block.rows, own, create=create)
                ahead = block.ahead(own.ids)
                jobs.append(Job(block.owner, block.work(count), read, ahead))
        return jobs

    def create_jobs(self, rows: RowIds) -> list[Job]:
        """Make rows of those ids that are unknown."""
        return [
            Job(block.owner, block.work(len(own)), partial(block.rows.create, own))
            for block, own in self._split(rows)
        ]

    def remove_jobs(
        self,
        rows: RowIds,
        remove: Callable[[Block, NDArray[np.int64]], int],
        counts: list[int],
    ) -> list[Job]:
        """Remove rows; those that don't exist are left out.

        Args:
            rows: They.
            remove: Removes rows of a block, and returns how many; called by its owner.
            counts: Gets what it returned.
        """
        self._capacity.note_removal(len(rows.ids))

        def act(block: Block, own: NDArray[np.int64]) -> None:
            counts.append(remove(block, own))

        split = self._split(rows)
        return [
            Job(block.owner, block.work(len(own)), partial(act, block, own))
            for block, own in split
        ]

    def discount_jobs(self, rows: RowIds, amounts: NDArray[np.float32]) -> list[Job]:
        """Subtract amounts, float32 [n], from what rows have of ``delta_score``."""

        def act(block: Block, where: slice) -> None:
            block.rows.discount(rows.ids[where], amounts[where])

        wheres = [(block, rows.within(block.shards)) for block in self.blocks]
        return [
            Job(block.owner, block.work(where.stop - where.start), partial(act, block, where))
            for block, where in wheres
            if where.stop > where.start
        ]

    def write_jobs(self, part: SparsePart) -> list[Job]:
        """Give rows the part's float32 values; their states stay, and unknown ids get rows."""
        self.use.push(part.offsets)
        return self.part_jobs(part, lambda block, own: write_rows(block.rows, own))

    def added_jobs(
        self, part: SparsePart, add: Callable[[Block, SparsePart], None]
    ) -> list[Job]:
        """Apply one update of a worker that is added to rows.

        Args:
            part: Of the worker.
            add: Adds a block's part; called by its owner.
        """
        self.num_pushes += 1
        self.use.push(part.offsets)
        return self.part_jobs(part, add)

    def part_jobs(
        self, part: SparsePart, act: Callable[[Block, SparsePart], None]
    ) -> list[Job]:
        """Return what acts on each block's part, as its owner."""
        jobs = []
        for block in self.blocks:
            where = part.within(block.shards)
            if count := where.stop - where.start:
                own = part.part(where)
                ahead = block.ahead(own.ids)
                jobs.append(
                    Job(block.owner, block.work(count), partial(act, block, own), ahead)
                )
        return jobs

    def _split(self, rows: RowIds) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        """Yield the blocks that some of the ids belong to, with these."""
        for block in self.blocks:
            own = rows.ids[rows.within(block.shards)]
            if len(own):
                yield block, own

    @override
    def update_jobs(self, parts: Sequence[SparsePart | DensePart], by: Stepping) -> list[Job]:
        self.num_pushes += len(parts)
        for part in parts:
            assert isinstance(part, SparsePart), "the request's reader sees to it"
            self.use.push(part.offsets)
        jobs = []
        for block in self.blocks:
            mine = []
            for part in parts:
                assert isinstance(part, SparsePart), "as above"
                where = part.within(block.shards)
                if where.stop > where.start:
                    mine.append(part.part(where))
            if mine:
                count = block.work(sum(len(part.ids) for part in mine))
                act = partial(push_rows, block.rows, mine, by)
                ahead = block.ahead(mine[0].ids)  # of more workers it is enough to begin with
                jobs.append(Job(block.owner, count, act, ahead))
        return jobs

    @override
    def guarded_jobs(
        self, part: SparsePart | DensePart, by: Stepping, *, pace: Pace
    ) -> list[Job]:
        assert isinstance(part, SparsePart), "the request's reader sees to it"
        self.num_pushes += 1
        self.use.push(part.offsets)
        jobs = []
        for block, guard in zip(self.blocks, self.guards, strict=True):
            mine = part.part(part.within(block.shards))
            if count := len(mine.ids):
                guarded = Guarded(guard, pace)
                act = partial(push_guarded_rows, block.rows, mine, by, guarded)
                jobs.append(Job(block.owner, block.work(count), act, block.ahead(mine.ids)))
        return jobs

    def _new_counters(self) -> tuple[RowCounter, ...]:
        first, num_shards = self.hosted.start, self.spec.num_shards
        return tuple(
            RowCounter(range(first + own.start, first + own.stop), num_shards)
            for _, own, _ in self.blocks
        )


class DenseTable(Table):
    """This server's range of a dense table.

    Args:
        spec: The table.
        hosted: This server's shards, by the numbers they have in the job; together a range.
        owner: Its owner.
    """

    def __init__(self, spec: TableSpec, hosted: range, *, owner: int) -> None:
        super().__init__(spec, hosted)
        bounds = [range_of_shard(spec.size, spec.num_shards, shard) for shard in hosted]
        start, stop = bounds[0][0], bounds[-1][1]
        self._lengths = np.array([last - first for first, last in bounds], np.int64)
        self.start = start
        self.stop = stop
        self.owner = owner
        self.range = DenseRange(spec, start, stop)
        self.guards = (RateGuard(),)
        self.missed = MissedUpdates()
        """How many of the table's updates had no gradient for each value of the range."""
        self._updates: dict[int, Update] = {}
        """The latest of each worker that came in pieces."""

    def resolved(self, part: DensePart, identity: ChangeIdentity) -> DensePart:
        """Return a part that is about to be applied with what it is a piece of."""
        if part.piece is None:
            return part
        source, square = (identity.incarnation, part.piece.first), part.piece.square
        known = self._updates.get(identity.worker)
        if known is None or known.source < source:
            known = self._updates[identity.worker] = Update(source, square)
        same = known if known.source == source else Update(source, square)
        return part._replace(update=same)

    def pieced_updates(self) -> dict[int, Update]:
        """Return the latest update of each worker that came in pieces."""
        return dict(self._updates)

    def restore_updates(self, updates: Mapping[int, Update]) -> None:
        """Take over the updates of another table; its owner has nothing to do."""
        self._updates = dict(updates)

    def forget(self, rank: int) -> None:
        """Keep nothing of a worker that left."""
        self._updates.pop(rank, None)

    @property
    @override
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    @override
    def num_bytes(self) -> int:
        return self.range.num_bytes

    def pull_job(self, out: Encoded, wire: WireDtype, where: slice) -> Job:
        """Copy some of the range's values to ``out``, as they are to travel."""

        def copy() -> None:
            read_values(self.range, where, wire, out)

        return self.job(copy, num_values=where.stop - where.start)

    @override
    def update_jobs(self, parts: Sequence[SparsePart | DensePart], by: Stepping) -> list[Job]:
        dense = [part for part in parts if isinstance(part, DensePart)]
        self.num_pushes += sum(map(is_counted, dense))
        num, segments = len(dense[0].values.rows), self._segments(dense, by.step)
        act = partial(push_values, self.range, dense, by, segments)
        return [self.job(act, num_values=num)]

    def _segments(
        self, parts: Sequence[DensePart], number: int
    ) -> list[tuple[int, int, int]] | None:
        """Return which values an update steps, each with the number of its step.

        Values for which no part has a gradient miss the update.

        Args:
            parts: What the update is made of.
            number: The update's.

        Returns:
            (start, stop, number) of each; None for all values of the parts by ``number``.
        """
        if not self.missed and any(part.is_update and part.spans is None for part in parts):
            return None  # nearly always
        if not any(part.is_update for part in parts):
            return []
        stepping = union(span for part in parts for span in part.stepping)
        where = parts[0].where
        return self.missed.step(stepping, number, (where.start, where.stop))

    @override
    def guarded_jobs(
        self,
        part: SparsePart | DensePart,
        by: Stepping,
        *,
        pace: Pace,
        num_steps: float = 1.0,
    ) -> list[Job]:
        assert isinstance(part, DensePart), "the request's reader sees to it"
        self.num_pushes += is_counted(part)
        guarded = Guarded(self.guards[0], pace, num_steps)
        segments = self._segments([part], by.step)
        act = partial(push_guarded_values, self.range, part, by, guarded, segments)
        return [self.job(act, num_values=len(part.values.rows))]

    def set_job(self, values: SetValues) -> Job:
        """Overwrite some of the range's values."""
        act = partial(self.range.set_some, *values)
        return self.job(act, num_values=len(values.places))

    def assign_job(self, values: NDArray[np.float32]) -> Job:
        """Overwrite the range's values, and let the new ones go where that is done."""
        given = [values]
        return self.job(lambda: self.range.assign(given.pop()))

    def job(self, act: Callable[[], None], *, num_values: int | None = None) -> Job:
        """Return work on so many of the range's values, or on all, for its owner."""
        num = self.num_rows if num_values is None else num_values
        return Job(self.owner, num // VALUES_PER_ROW, act)

    @override
    def adopt(self, other: Table) -> None:
        super().adopt(other)
        assert isinstance(other, DenseTable), "their specs are the same"
        self.range = other.range
        self.missed = other.missed
        self.guards = (RateGuard(),)

    @override
    def busiest_shards(self) -> list[dict[str, Any]]:
        lengths, use = self._lengths, ShardUse(len(self.hosted))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        use.pull(self.num_pulls * ends)  # a request is for the whole range
        use.push(self.num_pushes * ends)
        sizes = lengths * self.num_bytes // max(1, self.num_rows)
        return busiest(self.hosted.start, lengths, sizes, use)
