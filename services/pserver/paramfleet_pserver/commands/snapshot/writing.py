"""Takes a snapshot: all that decides what becomes of later commands, as messages.

It is of one position in the order of commands. ``take_image`` waits until all that was executed
has ended, and notes at once what the event loop keeps. What owners keep they note next, before
the jobs of any later command. From then on commands are executed, while the messages are made
piece by piece. What isn't state isn't taken: ids of pulls that workers name by number, requests
that wait, numbers that came ahead of their change, losses.

The first message says what the training is, the last one how many there were. Tables come next,
and dense values before rows: where there is no memory to copy them, commands wait for them.
Rows come by block in their places, since commands that announce rows name these, and new rows
are given free places in their order.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

from paramfleet_pserver.commands.geo import GeoExchange
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.snapshot.control import head_of, kept_by
from paramfleet_pserver.commands.snapshot.recorders import WaitingImage
from paramfleet_pserver.commands.snapshot.tables import DenseImage, Piece, SparseImage
from paramfleet_pserver.tables.owners import Job, Owners, when_done
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_shared.net.wire.message import Message

__all__ = ["PIECE_BYTES", "MachineImage", "snapshot_of", "take_image"]

PIECE_BYTES = 2 << 20
"""About how much of rows or values one message has: requests wait for their owner meanwhile."""


def snapshot_of(machine: Machine, *, piece_bytes: int = PIECE_BYTES) -> Iterator[Message]:
    """Yield the state of a machine that stands still: owners have nothing to do all the time.

    Args:
        machine: It; no change was applied in part.
        piece_bytes: About how much of rows or values one message has.

    Raises:
        TablesDamagedError: if a change was applied in part.
    """
    plan = _Plan(machine, piece_bytes, copies=False)
    try:
        for job in plan.begin_jobs():
            job.act()
        number = 0
        for piece in plan.pieces():
            message = piece.make() if isinstance(piece, Piece) else piece
            if message is not None:
                number += 1
                yield message
        yield _end_of(number)
    finally:
        for job in plan.end_jobs():
            job.act()


async def take_image(machine: Machine, *, piece_bytes: int = PIECE_BYTES) -> "MachineImage":
    """Return an image of all commands that were executed before it is returned.

    It waits for a moment at which no command is under way. The caller executes none meanwhile,
    so that the moment comes soon, and reads the position before it awaits anything else.

    Args:
        machine: It.
        piece_bytes: About how much of rows or values one message has.

    Raises:
        TablesDamagedError: if a change was applied in part.
    """
    await machine.settle()
    return MachineImage(machine, piece_bytes=piece_bytes)


class MachineImage:
    """The state of a machine at the moment at which this is made; ``end`` must follow.

    Args:
        machine: It; nothing that it was given is under way.
        piece_bytes: About how much of rows or values one message has.

    Raises:
        TablesDamagedError: if a change was applied in part.
    """

    def __init__(self, machine: Machine, *, piece_bytes: int) -> None:
        self._plan: _Plan | None = _Plan(machine, piece_bytes, copies=True)
        self._owners: Owners = machine.owners
        self._apart = asyncio.Event()
        self._begun = self._owners.start(self._plan.begin_jobs())
        when_done(self._begun, asyncio.Future.exception)  # whoever reads gets it
        if self._plan.is_apart:
            self._apart.set()

    @property
    def is_apart(self) -> bool:
        """Return whether commands may be executed again."""
        return self._apart.is_set()

    async def apart(self) -> None:
        """Return when commands may be executed again.

        That is at once, but where there is no memory for a copy of dense values: then it is
        when they have been read, or the image has ended.
        """
        await self._apart.wait()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield the state, as ``snapshot_of`` does; at most once.

        Raises:
            TableMemoryError: if there was no memory for what has changed since.
        """
        plan = self._plan
        assert plan is not None, "the image has ended"
        await asyncio.shield(self._begun)
        number = 0
        for piece in plan.pieces(on_values=self._apart.set):
            found = [piece] if isinstance(piece, Message) else await self._made(piece)
            for message in found:
                number += 1
                yield message
        yield _end_of(number)

    def end(self) -> None:
        """Put no rows aside any more, and let go of what was copied. May be repeated."""
        plan, self._plan = self._plan, None
        self._apart.set()
        if plan is not None:
            for job in plan.end_jobs():
                self._owners.post(job)

    async def _made(self, piece: Piece) -> list[Message]:
        found: list[Message] = []
        await self._owners.run([piece.job(found)])
        return found


class _Plan:
    """What a snapshot consists of.

    Args:
        machine: It; nothing that it was given is under way.
        piece_bytes: About how much of rows or values one message has.
        copies: Whether values are copied at once, as far as there is memory.
    """

    def __init__(self, machine: Machine, piece_bytes: int, *, copies: bool) -> None:
        machine.check_whole()
        store = machine.store
        self._control = [head_of(machine), *kept_by(machine)]
        self._dense: list[DenseImage] = []
        self._sparse: list[SparseImage] = []
        self._recorders: list[WaitingImage] = []
        self._tables: list[DenseImage | SparseImage] = []
        num_copied = 0
        for table in store:
            if isinstance(table, DenseTable):
                num_copied += table.num_bytes
                has_memory = copies and store.has_memory(table.spec.name, num_copied)
                self._dense.append(DenseImage(table, piece_bytes, copies=has_memory))
                self._tables.append(self._dense[-1])
            elif isinstance(table, SparseTable):
                self._sparse.append(SparseImage(table, piece_bytes))
                self._tables.append(self._sparse[-1])
                self._recorders += _recorders_of(machine, table, piece_bytes)
        self.is_apart = all(table.copies for table in self._dense)
        """Whether tables may change from when their owners have begun."""

    def begin_jobs(self) -> list[Job]:
        """Return what owners do before the jobs of later commands."""
        jobs = [job for table in self._tables for job in table.begin_jobs()]
        return jobs + [recorder.begin_job() for recorder in self._recorders]

    def end_jobs(self) -> list[Job]:
        """Return what puts no rows aside any more."""
        jobs = [job for table in self._tables for job in table.end_jobs()]
        return jobs + [recorder.end_job() for recorder in self._recorders]

    def pieces(self, on_values: Callable[[], None] | None = None) -> Iterator[Piece | Message]:
        """Yield what is to be written, in order.

        Args:
            on_values: Called when all values have been read.
        """
        head, *kept = self._control
        yield head
        yield from (table.about for table in self._tables)
        for table in self._dense:
            yield from table.pieces()
        if on_values is not None:
            on_values()
        for rows in self._sparse:
            yield from rows.pieces()
        yield from kept
        for recorder in self._recorders:
            yield from recorder.pieces()


def _recorders_of(
    machine: Machine, table: SparseTable, piece_bytes: int
) -> Iterator[WaitingImage]:
    mode, name = machine.mode, table.spec.name
    if isinstance(mode, GeoExchange) and mode.has_recorders(table):
        check = partial(machine.store.check_memory, name)
        for index, recorded in enumerate(mode.recorded(table)):
            yield WaitingImage(
                name, index, recorded, check_memory=check, piece_bytes=piece_bytes
            )


def _end_of(number: int) -> Message:
    return Message(fields={"kind": "end", "messages": number})
