"""gpubox: workers train whole passes by themselves, and write them back at their ends.

A worker reads rows and ranges with all their columns, trains them for a pass over its data, and
writes values and states back: prepared on all pservers, then committed, so that they are wholly
in or wholly out. What others change of a table meanwhile would be overwritten. So each table
counts such writes; who reads it is told the count, and what it writes back is refused where the
count is another by then. From the first piece that is prepared until the commit or the abort
nobody else writes.
"""

import asyncio
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from paramfleet_pserver.commands.modes import EVERY_MODE, ServerMode
from paramfleet_pserver.commands.records import AbortPass, CommitPass, PassCommand, Prepare
from paramfleet_pserver.core.passes import PassBook
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.requests.pass_requests import PrepareRequest
from paramfleet_pserver.requests.row_requests import RemoveRequest, WriteRequest
from paramfleet_pserver.tables.capacity import Claims
from paramfleet_pserver.tables.columns import PassPart, write_jobs
from paramfleet_pserver.tables.owners import Owners, when_done
from paramfleet_pserver.tables.table import DenseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.served import (
    ForeignWriteError,
    PassPieceRepeatedError,
    PassPreparedError,
    PassUpdatesError,
)
from paramfleet_shared.values.ids import Rank, Step
from paramfleet_shared.values.spans import MissedUpdates

__all__ = ["KeptPiece", "PassMode"]

MOST_STEPS = 1 << 40
"""That one pass may say it has taken: counts stay far from what can't be written."""

_BEFORE = "a process that this pserver replaces"


class KeptPiece(NamedTuple):
    """A piece of a pass until that is committed or aborted."""

    parts: tuple[PassPart, ...]
    claims: Claims
    """Room for the rows that it creates."""


class PassMode(ServerMode):
    """gpubox: the passes of one job.

    Args:
        num_workers: Workers of the job.
        store: The tables.
        owners: Who writes to them.
    """

    name: ClassVar[Mode] = "gpubox"
    operations = EVERY_MODE | {
        "read_pass",
        "prepare_pass",
        "commit_pass",
        "abort_pass",
        "pass_state",
    }
    takes_all = True
    replaceable = True

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        super().__init__(num_workers=num_workers, store=store, owners=owners)
        self._owners = owners
        self.book: PassBook[KeptPiece] = PassBook()

    @override
    def leave(self, rank: Rank, step: Step) -> None:
        """Drop what a worker has prepared: nobody comes after it."""
        del step
        for kept in self.book.leave(rank):
            kept.claims.release()

    @override
    def check_rows(self, change: RemoveRequest | WriteRequest) -> None:
        if len(change.rows.ids):  # it goes to all pservers, whichever have the rows
            self.check_write("remove" if isinstance(change, RemoveRequest) else "write")

    @override
    def check_write(self, operation: str) -> None:
        for held in self.book.held():
            raise PassPreparedError(operation=operation, number=held.number, rank=held.rank)

    @override
    def note_write(self, table: Table, by: str) -> None:
        table.writes += 1
        table.last_write = by

    def check(self, command: PassCommand) -> bool:
        """Return True if a command is to be executed, False if it was before.

        Raises:
            FleetError: why it can't be executed; see ``PassBook``.
            PassPieceRepeatedError: if a piece was prepared with other numbers.
            ForeignWriteError: if somebody wrote to a table since the pass read it.
            PassUpdatesError: if a table has taken more steps than the pass says.
        """
        match command:
            case Prepare(prepare):
                return self._check_prepare(prepare)
            case CommitPass():
                return self.book.check_commit(command.number, command.pieces)
            case AbortPass():
                self.book.check_abort(command.number)
                return True

    def execute(self, command: PassCommand, claims: Claims) -> asyncio.Future[None]:
        """Execute a command that ``check`` finds new; return when its writes are done.

        Args:
            command: It.
            claims: Of a piece: room for its rows, which is held until the pass is committed or
                aborted.
        """
        match command:
            case Prepare(prepare):
                self.book.prepare(prepare.piece, KeptPiece(prepare.parts, claims))
            case CommitPass():
                return self._commit()
            case AbortPass():
                for kept in self.book.abort(command.number):
                    kept.claims.release()
        return self._owners.start(())

    def _check_prepare(self, prepare: PrepareRequest) -> bool:
        rank, number = prepare.piece.rank, prepare.piece.number
        if not self.book.check_prepare(prepare.piece):
            self._check_same(prepare)
            return False
        for part in prepare.parts:
            table = part.table
            if part.writes != table.writes:
                by = table.last_write or _BEFORE
                raise ForeignWriteError(table=table.spec.name, by=by, number=number)
            if not 0 <= part.updates - table.num_updates <= MOST_STEPS:
                raise PassUpdatesError(
                    table=table.spec.name,
                    rank=rank,
                    updates=part.updates,
                    present=table.num_updates,
                )
        return True

    def _check_same(self, prepare: PrepareRequest) -> None:
        """Pass if a piece that comes again is the one that is here.

        One that was on its way while its pass was aborted would take the place of what the
        pass has now.

        Raises:
            PassPieceRepeatedError: if it isn't.
        """
        rank, _, number, piece, _ = prepare.piece
        kept = self.book.content(rank, piece)
        if kept is None or not _are_same(kept.parts, prepare.parts):
            raise PassPieceRepeatedError(rank=rank, number=number, piece=piece)

    def _commit(self) -> asyncio.Future[None]:
        kept = self.book.commit()
        number = self.book.committed
        tables: dict[str, Table] = {}
        jobs = []
        for part in (part for piece in kept for part in piece.parts):
            tables[part.table.spec.name] = part.table
            part.table.num_updates = max(part.table.num_updates, part.updates)
            if isinstance(part.table, DenseTable):
                part.table.missed = MissedUpdates(part.missed)
            jobs += write_jobs(part)
        for table in tables.values():
            table.num_pushes += 1
            self.note_write(table, f"pass {number}")
        claims = [piece.claims for piece in kept]
        applied = self._owners.start(jobs)
        when_done(applied, partial(self._committed, number, [*tables.values()], claims))
        return applied

    def _committed(
        self,
        number: int,
        tables: list[Table],
        claims: list[Claims],
        applied: asyncio.Future[None],
    ) -> None:
        """Count a pass; if it failed, although there was room for it, some shards have it."""
        for each in claims:
            each.release()
        error = applied.exception()
        if error is not None:
            self.note_damage(Step(number), error)
            return
        for table in tables:
            table.version += 1


def _are_same(parts: tuple[PassPart, ...], others: tuple[PassPart, ...]) -> bool:
    if [part.fields() for part in parts] != [part.fields() for part in others]:
        return False
    for mine, its in ((a.tensors(), b.tensors()) for a, b in zip(parts, others, strict=True)):
        if not all(np.array_equal(mine[name], its[name]) for name in mine):
            return False
    return True
