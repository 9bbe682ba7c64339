"""Exchanges: a worker adds its differences and receives what the others changed.

In LocalSGD a dense table's optimizer takes the differences instead, each worker's divided by
the number of workers that take the step: also by those that have left after it, so that whose
last exchange comes last has no larger share.

The order that loses nothing: differences are added, then their rows are noted for the
other workers, then this worker's waiting rows are taken, then they are read. A reader
between the steps reads a newer row than it had to and receives it again. What was begun
ends even if the request's deadline cuts its answer off.

A difference may be divided by how many workers share what it changes, to a power that its
worker names. A dense table is shared by all; a row by those that changed it at the same time,
so that progress of one worker alone is added whole. The worker receives its own rows, too,
where less was added than it sent, or where the table rounds what it keeps.

Each block of a table has a recorder, which lives on the block's owner thread and counts
rows as the block does. All of a table make their replies together, so that one number
acknowledges them.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_pserver.commands.modes import EVERY_MODE, ServerMode
from paramfleet_pserver.commands.records import Announce, Announced
from paramfleet_pserver.commands.removing import release_reported, remove_recorded
from paramfleet_pserver.commands.taking import Taken, TakingRows
from paramfleet_pserver.core.geo.recorder import GeoRecorder
from paramfleet_pserver.core.geo.sharers import Sharers
from paramfleet_pserver.core.pacing import Pace, RateGuard
from paramfleet_pserver.requests.checked import ExchangePart, ExchangeRequest, Mode
from paramfleet_pserver.requests.row_requests import RemoveRequest, WriteRequest
from paramfleet_pserver.tables.adding import add_part
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.parts import (
    DensePart,
    Guarded,
    SparsePart,
    Stepping,
    square_of,
)
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.served import GeoRuleError
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["ANNOUNCED_ROWS", "GeoExchange", "LocalSgdExchange", "Recorded"]

ANNOUNCED_ROWS = 1 << 18
"""Rows of a table that are announced at a time."""


class GeoExchange(ServerMode):
    """GEO: the recorders of a job's sparse tables.

    Args:
        num_workers: Workers that take part from the start.
        store: The tables.
        owners: Who works on them.
    """

    name: ClassVar[Mode] = "geo"
    operations = EVERY_MODE | {"exchange", "states"}
    states_apart = True

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        self.ranks = {Rank(rank) for rank in range(num_workers)}
        """Who exchanges."""
        self.term = 0
        """In which replies are numbered: the last one that began from a state on a disk."""
        self.unannounced: set[Rank] = set()
        """Those of them that are still to be sent all rows that there were."""
        self._store = store
        self._owners = owners
        self._recorders: dict[str, tuple[Recorded, ...]] = {}
        self._announced: dict[str, tuple[Block, ...]] = {}

    @classmethod
    @override
    def check_rule(cls, spec: TableSpec) -> None:
        record = spec.optimizer.record
        if not record.adds and record.statistics is None:
            raise GeoRuleError(table=spec.name, rule=spec.optimizer.rule)

    def jobs(
        self, request: ExchangeRequest, parts: Sequence[ExchangePart], *, num_workers: int
    ) -> list[Job]:
        """Add these parts' differences, and note them for the other workers.

        Args:
            request: What the parts are of.
            parts: Those not taken before.
            num_workers: That take the request's step.
        """
        jobs: list[Job] = []
        for part in parts:
            table = part.table
            content = part.content
            if isinstance(table, DenseTable) and isinstance(content, DensePart):
                content = table.resolved(content, request.identity)
            by = Stepping(part.lr, table.number_of(content))
            pace = Pace(num_workers, part.damping)
            is_guarded = part.guarded_steps > 0 and num_workers > 1
            if isinstance(table, DenseTable) and is_guarded:
                num_steps = part.guarded_steps
                jobs += table.guarded_jobs(content, by, pace=pace, num_steps=num_steps)
                continue
            if isinstance(content, DensePart):
                content = content._replace(scale=self.share(pace))
            elif part.damping or is_guarded:
                num = len(content.ids)
                content = content._replace(
                    weights=np.ones(num, np.float32), slots=np.empty(num, np.int64)
                )
                guarded_steps = part.guarded_steps if is_guarded else 0
                jobs += self._weigh_jobs(part, content, request, pace, guarded_steps)
            if isinstance(content, SparsePart) and table.spec.creates_at_push:
                jobs += self._add_jobs(table, content, by.step, request.rank)
                continue
            jobs += table.update_jobs([content], by)
            if isinstance(content, SparsePart):
                jobs += self._record_jobs(table, content, request.rank)
        return jobs

    def take(self, request: ExchangeRequest) -> Taken:
        """Return what takes the rows that wait for a worker, table by table.

        Its jobs are to run after those that add the request's differences.
        """
        taken = Taken(self._store, self._owners, request)
        for part in request.parts:
            if not isinstance(part.table, SparseTable):
                continue
            max_rows = max(1, part.max_rows // len(part.table.blocks))
            taken.blocks[part.table.spec.name] = [
                TakingRows(block, recorder, request.rank, part.ack, max_rows)
                for block, recorder, *_ in self.recorded(part.table)
            ]
        return taken

    @override
    def remove(self, remove: RemoveRequest, counts: list[int]) -> list[Job]:
        """Remove rows, and let every worker be sent that they are gone."""
        recorded = {each.block.owner: each for each in self.recorded(remove.table)}
        return remove.table.remove_jobs(
            remove.rows, lambda block, ids: recorded[block.owner].remove(ids), counts
        )

    @override
    def write(self, write: WriteRequest) -> list[Job]:
        """Write rows, and send them to every worker that doesn't have them.

        First values go to their writer, too.
        """
        table, writer = write.table, None if write.only_if_new else write.rank
        return table.write_jobs(write.content) + self._record_jobs(table, write.content, writer)

    @override
    def news_of_load(self) -> Iterator[Announce | Announced]:
        """Yield what sends every worker every row that came from a checkpoint.

        What was executed once isn't yielded again, and what was left out is made up for.
        """
        for table in self._store:
            if isinstance(table, SparseTable) and table.is_loaded:
                blocks = table.blocks
                if self._announced.get(table.spec.name) is not blocks:
                    yield from _all_rows(table, None)
                    if table.blocks is blocks:
                        yield Announced(table=table)

    @override
    def news_of_all(self, rank: Rank) -> Iterator[Announce | Announced]:
        """Yield what sends a worker that joined every row that there is already.

        What was left out is made up for, and a row that waits already does so once.
        """
        if rank not in self.unannounced:
            return
        for table in self._store:
            if isinstance(table, SparseTable):
                yield from _all_rows(table, rank)
        yield Announced(rank)

    def announced_tables(self) -> list[str]:
        """Return the tables of a load whose rows all wait for every worker."""
        return [
            table.spec.name
            for table in self._store
            if isinstance(table, SparseTable)
            and self._announced.get(table.spec.name) is table.blocks
        ]

    def has_recorders(self, table: SparseTable) -> bool:
        """Return whether anything was noted for workers of a table, or of one before a load."""
        return table.spec.name in self._recorders

    def restore(
        self,
        ranks: Iterable[Rank],
        unannounced: Iterable[Rank],
        announced: Iterable[str],
        *,
        term: int,
    ) -> None:
        """Take over who exchanges; the owners have nothing to do.

        Args:
            ranks: As ``ranks``.
            unannounced: As ``unannounced``.
            announced: As ``announced_tables`` returns them.
            term: As ``term``.
        """
        self.ranks, self.unannounced, self.term = set(ranks), set(unannounced), term
        for name in announced:
            table = self._store.find(name)
            if isinstance(table, SparseTable):
                self._announced[name] = table.blocks

    def restore_recorders(
        self, table: SparseTable, kept: Sequence[tuple[GeoRecorder, Sharers]]
    ) -> None:
        """Take over what waits for workers of a table; ``restore`` was called before.

        Args:
            table: It.
            kept: Of each block; with all workers that exchange.
        """
        blocks = zip(table.blocks, kept, table.guards, strict=True)
        self._recorders[table.spec.name] = tuple(
            Recorded(block, recorder, sharers, guard)
            for block, (recorder, sharers), guard in blocks
        )
        for recorded in self._recorders[table.spec.name]:
            recorded.recorder.term = self.term
            recorded.count_bytes()

    def announced(self, announced: Announced) -> None:
        """Note that all rows that there were wait."""
        if announced.rank is not None:
            self.unannounced.discard(announced.rank)
        if announced.table is not None:
            self._announced[announced.table.spec.name] = announced.table.blocks

    def announce(self, announce: Announce) -> list[Job]:
        """Let rows wait for a worker, or for all.

        Its job changes nothing, and raises ``MalformedMessageError``, if the block has fewer.
        """
        recorded = self.recorded(announce.table)[announce.block]
        act = partial(recorded.announce, announce.start, announce.stop, announce.rank)
        return [Job(recorded.block.owner, announce.stop - announce.start, act)]

    @override
    def join(self, rank: Rank) -> None:
        """Note for a worker what others change from now on; ``news_of_all`` is the rest."""
        self.ranks.add(rank)
        self.unannounced.add(rank)
        for recorded in self._recorders.values():
            for each in recorded:
                self._owners.post(Job(each.block.owner, 0, partial(each.join, rank)))

    @override
    def begin_term(self, term: int) -> None:
        """Number replies anew, and let every row wait for every worker once more."""
        self.term = term
        self.unannounced |= self.ranks
        for recorded in self._recorders.values():
            for each in recorded:
                begin = partial(each.recorder.begin_term, term)
                self._owners.post(Job(each.block.owner, 0, begin))

    @override
    def forget(self, rank: Rank) -> None:
        """Keep nothing for a worker any more."""
        self.ranks.discard(rank)
        for recorded in self._recorders.values():
            for each in recorded:
                self._owners.post(Job(each.block.owner, 0, partial(each.leave, rank)))

    def share(self, pace: Pace) -> float:
        """Return what a difference of a dense table is multiplied by."""
        return pace.share

    def _weigh_jobs(
        self,
        part: ExchangePart,
        content: SparsePart,
        request: ExchangeRequest,
        pace: Pace,
        guarded_steps: float,
    ) -> list[Job]:
        """Weigh rows by their sharers; to run before the jobs that add to them."""
        assert isinstance(part.table, SparseTable), "its content is"
        jobs = []
        for recorded in self.recorded(part.table):
            some = content.part(content.within(recorded.block.shards))
            act = partial(
                recorded.weigh,
                some,
                writer=request.rank,
                step=request.step,
                pace=pace,
                guarded_steps=guarded_steps,
            )
            jobs.append(Job(recorded.block.owner, len(some.ids), act))
        return jobs

    def _add_jobs(self, table: Table, part: SparsePart, number: int, writer: Rank) -> list[Job]:
        """Add to rows that count their use or need to be admitted, and note them."""
        assert isinstance(table, SparseTable), "the part is"
        recorded = {each.block.owner: each for each in self.recorded(table)}

        def add(block: Block, some: SparsePart) -> None:
            recorded[block.owner].add(some, step=number, writer=writer)

        return table.added_jobs(part, add)

    def _record_jobs(self, table: Table, part: SparsePart, writer: Rank | None) -> list[Job]:
        """Note rows; to run after the jobs that add to them, in one go with them."""
        assert isinstance(table, SparseTable), "the part is"
        jobs = []
        for recorded in self.recorded(table):
            some = part.part(part.within(recorded.block.shards))
            if count := len(some.ids):
                act = partial(recorded.record, some, writer=writer)
                jobs.append(Job(recorded.block.owner, count, act))
        return jobs

    def recorded(self, table: SparseTable) -> tuple["Recorded", ...]:
        """Return a table's blocks with their recorders, new ones after a load."""
        name = table.spec.name
        former = self._recorders.get(name, ())
        if not former or former[0].block is not table.blocks[0]:
            last = max((each.recorder.last_batch for each in former), default=0)
            recorders = [
                GeoRecorder(num_workers=0, last_batch=last, term=self.term)
                for _ in table.blocks
            ]
            self._recorders[name] = tuple(
                Recorded(block, recorder, Sharers(), guard)
                for block, recorder, guard in zip(
                    table.blocks, recorders, table.guards, strict=True
                )
            )
            for recorded in self._recorders[name]:
                for rank in sorted(self.ranks):
                    recorded.join(rank)
        return self._recorders[name]


class LocalSgdExchange(GeoExchange):
    """LocalSGD: a dense table's optimizer takes the mean of the workers' differences."""

    name: ClassVar[Mode] = "localsgd"
    operations = EVERY_MODE | {"exchange"}
    states_apart = False

    @classmethod
    @override
    def check_rule(cls, spec: TableSpec) -> None:
        if spec.kind == "sparse" and not spec.optimizer.record.adds:
            raise GeoRuleError(table=spec.name, rule=spec.optimizer.rule)

    @override
    def share(self, pace: Pace) -> float:
        return super().share(pace) / pace.workers


class Recorded(NamedTuple):
    """A block, what each worker hasn't seen of it, and who changes the same rows of it."""

    block: Block
    recorder: GeoRecorder
    sharers: Sharers
    guard: RateGuard

    def join(self, rank: Rank) -> None:
        """Note for a worker what others change from now on."""
        self.recorder.join(rank)
        self.sharers.join(rank)
        self.count_bytes()

    def leave(self, rank: Rank) -> None:
        """Keep nothing for a worker any more."""
        release_reported(self.block.rows, self.recorder, self.recorder.leave(rank))
        self.sharers.leave(rank)
        self.count_bytes()

    def count_bytes(self) -> None:
        """Let new rows of the block need memory for what is kept of them here, too."""
        beside = self.recorder.row_bytes + self.sharers.row_bytes
        self.block.rows.count_beside(beside)

    def announce(self, start: int, stop: int, rank: Rank | None) -> None:
        """Let the rows in places [start, stop) wait for a worker, or for all.

        Raises:
            MalformedMessageError: if there are fewer places; nothing is changed.
        """
        found = self.block.rows.num_slots  # only its owner knows: rows may be on their way
        if stop > found:
            rule = f"must be at most {found}: as many rows are there"
            raise MalformedMessageError(where="announce field 'stop'", rule=rule)
        rows = self.block.rows.live(start, stop)
        if rank is None:
            self.recorder.record(rows, writer=None)
        else:
            self.recorder.announce(rank, rows)

    def remove(self, ids: NDArray[np.int64]) -> int:
        """Remove rows, and return how many.

        Their places stay taken until every worker has dropped its copies.
        """
        places = self.block.rows.remove(ids)
        self.sharers.forget(places)
        remove_recorded(self.block.rows, self.recorder, places)
        return len(places)

    def weigh(
        self, part: SparsePart, *, writer: Rank, step: Step, pace: Pace, guarded_steps: float
    ) -> None:
        """Set weights and slots of rows that are about to change; end the writer's period."""
        assert part.weights is not None, "they are to be set"
        assert part.slots is not None, "and these"
        part.slots[:] = self.block.rows.find(part.ids)
        counts = self.sharers.count(part.slots, writer=writer, step=step)
        self.count_bytes()
        scale, power = 1.0, pace.power
        if guarded_steps and len(part.ids):
            guarded = Guarded(self.guard, pace, guarded_steps)
            square = square_of(part, unscaled=self.block.rows.spec.num_unscaled)
            scale, power = guarded.stride(square)
        part.weights[:] = np.float32(scale) / counts.astype(np.float32) ** np.float32(power)

    def record(self, part: SparsePart, *, writer: Rank | None) -> None:
        """Note rows that changed; the writer receives those that aren't what it holds.

        Without a writer every worker receives them.
        """
        rows = self._slots_of(part)
        is_rounded = self.block.rows.spec.storage != "float32"
        self.recorder.record(rows, writer=None if is_rounded else writer)
        if writer is not None and part.weights is not None:
            self.recorder.announce(writer, rows[part.weights < 1.0])
            self.sharers.note(rows, writer=writer)

    def add(self, part: SparsePart, *, step: int, writer: Rank) -> None:
        """Add to rows that count their use or need to be admitted, and note them.

        The writer receives those that it doesn't have, or that aren't what it holds.
        """
        added = add_part(self.block.rows, part, step=step)
        is_rounded = self.block.rows.spec.storage != "float32"
        self.recorder.record(added.changed, writer=None if is_rounded else writer)
        self.recorder.record(added.made, writer=None)
        self.recorder.announce(writer, added.differing)
        if part.weights is not None:
            weights = part.weights[added.is_changed]
            self.recorder.announce(writer, added.changed[weights < 1.0])
            self.sharers.note(added.changed, writer=writer)

    def _slots_of(self, part: SparsePart) -> NDArray[np.int64]:
        """Return where rows that exist by now are; only new ones are looked up once more."""
        if part.slots is None:
            return self.block.rows.find(part.ids)
        new = np.flatnonzero(part.slots < 0)
        if len(new):
            part.slots[new] = self.block.rows.find(part.ids[new])
        return part.slots


def _all_rows(table: SparseTable, rank: Rank | None) -> Iterator[Announce]:
    """Yield a table's rows, some at a time: their owners have others to serve."""
    blocks = table.blocks
    for index, block in enumerate(blocks):
        for start in range(0, block.rows.num_slots, ANNOUNCED_ROWS):
            if table.blocks is not blocks:  # a load came between: it has news of its own
                return
            stop = min(start + ANNOUNCED_ROWS, block.rows.num_slots)
            yield Announce(table, index, start, stop, rank)
