"""The commands of a training on their way to its copies, and how far each worker's changes are.

Copies are the owner's disk, if it has one, and the memories of followers. A command is encoded
once for all of them, before it is executed, and is appended right after: what is refused is in
no log. What had no effect isn't appended. Where there is no copy commands are counted alone.

A load isn't appended: it would be as large as the tables. Nothing from there on counts as
durable before a snapshot has it, on the disk or with a follower that has begun anew.
"""

import asyncio
import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from paramfleet_pserver.commands.codec import to_bytes
from paramfleet_pserver.commands.machine import Outcome
from paramfleet_pserver.commands.records import (
    Begin,
    Command,
    Contribute,
    Discount,
    Exchange,
    Load,
    Remove,
    Update,
    Void,
    WriteRows,
)
from paramfleet_pserver.commands.snapshot.writing import MachineImage
from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.durability.copies.registered import Copies, Proposal
from paramfleet_pserver.durability.copies.stream import LIMIT_BYTES, CommandStream
from paramfleet_pserver.durability.disk_log import DiskLog
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import LogClosedError
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.settings.failpoints import has_defect
from paramfleet_shared.system.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hold", "Journal"]

ROOM_FRACTION = 0.5
"""Part of the memory for followers from which on changes wait for them."""


class _Reached(NamedTuple):
    """How far a worker's changes are once a position of the log is durable."""

    position: int
    worker: int
    incarnation: int
    next: int
    """All changes before this sequence were taken."""


class Hold:
    """Holds requests back, while an image of the training is taken.

    Args:
        end: Called when it ends.
    """

    def __init__(self, end: "Callable[[Hold], None]") -> None:
        self._end = end

    def end(self) -> None:
        """Let requests go on; may be called twice."""
        self._end(self)

    async def end_with(self, image: MachineImage) -> None:
        """End when an image lets commands be executed again."""
        await image.apart()
        self.end()


class Journal:
    """The commands of one training. Used from one event loop.

    Args:
        identities: Which changes were taken; those of now count as durable once all that was
            executed is.
        copies: Which copies there are.
        clock: Time.
        disk: The log on the disk; None for none.
        position: Of the last command, where there is no log on the disk.
        stream_bytes: Of commands that are kept for followers.
    """

    def __init__(
        self,
        identities: IdentityWindow,
        *,
        copies: Copies,
        clock: Clock,
        disk: DiskLog | None = None,
        position: int = 0,
        stream_bytes: int | None = None,
    ) -> None:
        if disk is not None:
            position = disk.writer.position
        self.copies = copies
        self.disk = disk
        self.stream = CommandStream(position=position)
        """For followers."""
        self.stream_bytes = stream_bytes or LIMIT_BYTES
        """Of commands that are kept for followers that have their snapshot."""
        self.stream.limit_bytes = self.stream_bytes
        self.accepting = asyncio.Event()
        """Unset while requests are held back, for some milliseconds."""
        self.accepting.set()
        self._holds: set[Hold] = set()
        self.on_append: Callable[[], None] = _nothing
        """Called when a command was appended for followers."""
        self._clock = clock
        self._failure: FleetError | None = None
        """Why nothing becomes durable any more."""
        self._identities = identities
        self._order = itertools.count()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._progress: asyncio.Future[None] | None = None
        """Awaited by changes that wait for a follower that lags."""
        self._reached: deque[_Reached] = deque()
        self._durable: dict[int, tuple[int, int]] = {}
        self._reports = copies.reports
        for taken in identities.taken():
            if taken.incarnation == identities.incarnation(taken.worker):
                self._reached.append(
                    _Reached(position, taken.worker, taken.incarnation, taken.next)
                )

    @property
    def position(self) -> int:
        """Return the position of the last command; the first one has 1."""
        return self.stream.position

    @property
    def reports(self) -> bool:
        """Return whether workers keep their changes until they are durable."""
        return self._reports

    @property
    def is_plain(self) -> bool:
        """Return whether a request needs nothing of this but that it isn't held back."""
        return not self._reports and not self.stream.is_kept and self.accepting.is_set()

    @property
    def is_unprotected(self) -> bool:
        """Return whether changes count as durable though there is no copy, or none do."""
        return self.copies.is_unprotected(self._clock.monotonic())

    @property
    def state(self) -> str:
        """Return how the log is that changes wait for: that on the disk, or followers'."""
        if self.disk is not None and self.disk.writer.state != "open":
            return self.disk.writer.state
        if not self.copies.registered or self.copies.has_inherited:
            return "without a copy"
        return "open"

    @property
    def snapshot_wanted(self) -> asyncio.Event:
        """Set while changes wait for a snapshot on the disk, which there is."""
        assert self.disk is not None, "who asks has a disk"
        return self.disk.snapshot_wanted

    def encoded(self, command: Command) -> bytes:
        """Return a command as it will be appended; the caller executes it without a wait.

        Raises:
            DiskFullError: if the disk has no room.
            DiskFailingError: if it refuses to write.
            LogBehindError: if too much waits for it.
            CommandTooLargeError: if a command can't have so many bytes.
            LogClosedError: if the log is closed.
        """
        if self.disk is None and not self.stream.is_kept:
            return b""
        body = b"" if isinstance(command, Load) else to_bytes(command)
        if self.disk is not None:
            self.disk.writer.check(len(body))
        return body

    def note(self, command: Command, body: bytes, outcome: Outcome) -> None:
        """Append a command that was executed just now."""
        if not (outcome.is_fresh and outcome.is_changed) and not outcome.is_noted:
            return
        is_gap = isinstance(command, Load)
        position = self.stream.skip() if is_gap else self.stream.append(body)
        if self.disk is not None:
            self.disk.append(body, is_gap=is_gap)
        if self.stream.is_kept:
            self.on_append()
        if not self._reports:
            return
        identity = _identity_of(command)
        if identity is not None:
            following = self._identities.next_of(identity.worker)
            self._reached.append(
                _Reached(position, identity.worker, identity.incarnation, following)
            )

    def hold(self) -> "Hold":
        """Hold requests back until all holds have ended."""
        hold = Hold(self._end_hold)
        self._holds.add(hold)
        self.accepting.clear()
        return hold

    def attach(self, disk: DiskLog) -> None:
        """Append to a log on the disk, too, from now on; its first snapshot is to come."""
        assert disk.writer.position == self.position, "the log begins here"
        self.disk = disk

    @property
    def durable_position(self) -> int:
        """Return up to which position every copy that may be gone on with has all commands."""
        disk = 0 if self.disk is None else self.disk.durable_position
        if has_defect("durable_before_log"):
            return self.position
        if has_defect("durable_before_replica"):
            return self.position if self.disk is None else disk
        now = self._clock.monotonic()
        return self.copies.durable(position=self.position, disk=disk, now=now)

    def durable_before(self, worker: int, incarnation: int) -> int:
        """Return the first sequence of a worker's incarnation that may not be durable."""
        durable = self.durable_position
        while self._reached and self._reached[0].position <= durable:
            reached = self._reached.popleft()
            self._durable[reached.worker] = (reached.incarnation, reached.next)
        found, following = self._durable.get(worker, (incarnation, FIRST_SEQUENCE))
        return following if found == incarnation else FIRST_SEQUENCE

    def taken_before(self, worker: int, incarnation: int) -> int:
        """Return the first sequence of a worker's incarnation that wasn't taken here."""
        if self._identities.incarnation(worker) != incarnation:
            return FIRST_SEQUENCE
        return self._identities.next_of(worker)

    @property
    def is_settled(self) -> bool:
        """Return whether all that is executed is durable."""
        return not self._reports or self.durable_position >= self.position

    async def settle(self) -> None:
        """Wait until all that is executed now is durable.

        Raises:
            LogClosedError: if the log is closed before.
        """
        await self.durable(self.position)

    async def durable(self, position: int) -> None:
        """Wait until all commands up to a position are durable.

        Raises:
            LogClosedError: if the log is closed before.
        """
        if position <= self.durable_position:
            return
        if self._failure is not None:
            raise self._failure
        self._set_alarm()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (position, next(self._order), future))
        await future

    async def until_accepting(self) -> None:
        """Wait while more commands wait for the disk, or for counted followers, than may.

        Raises:
            LogClosedError: if the log is closed before.
        """
        while self.disk is not None and self.disk.writer.state == "behind":
            await self.disk.writer.durable(self.disk.writer.durable_position + 1)
        while self._lags():
            if self._failure is not None:
                raise self._failure
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._progress)

    def progress(self) -> None:
        """Let go on who waits for what is durable now: a copy has more, or there are others."""
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None
        if not self._waiters:
            return
        durable = self.durable_position
        while self._waiters and self._waiters[0][0] <= durable:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)

    def written(self, number: int) -> None:
        """Take note that the registry has a proposal."""
        self.copies.written(number, now=self._clock.monotonic())
        self.progress()
        if self._waiters:
            self._set_alarm()

    def proposal(self) -> Proposal | None:
        """Return which copies the registry is to name instead; None if it names the right."""
        disk = 0 if self.disk is None else self.disk.durable_position
        return self.copies.proposal(disk=disk, now=self._clock.monotonic())

    def begin_term(self, term: int) -> None:
        """Give another term to what is appended from now on."""
        if self.disk is not None:
            self.disk.writer.begin_term(term)

    def fail(self, error: FleetError) -> None:
        """Let all that wait fail, and all that will: nothing is executed any more."""
        self._failure = error
        if self._alarm is not None:
            self._alarm.cancel()
        self.progress()
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()

    async def close(self) -> None:
        """Write to the disk what waits for it; nothing is executed any more."""
        if self.disk is not None:
            await self.disk.writer.close()
        if self._failure is None:
            self.fail(self._closed())

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask of the log on the disk."""
        assert self.disk is not None, "who asks has a disk"
        about = {"position": self.position, "durable_position": self.durable_position}
        return {**self.disk.facts(), **about}

    def _end_hold(self, hold: "Hold") -> None:
        self._holds.discard(hold)
        if not self._holds:
            self.accepting.set()

    def _lags(self) -> bool:
        """Return whether followers that count lack much of what is kept for them."""
        stream = self.stream
        if not self._reports or not stream.is_kept:
            return False
        return any(
            stream.lag_bytes(position) > ROOM_FRACTION * self.stream_bytes
            for position in self.copies.positions()
            if stream.has(position)
        )

    def _set_alarm(self) -> None:
        """Look again when no copy is waited for any more."""
        left_s = self.copies.grace_left_s(self._clock.monotonic())
        if left_s and (self._alarm is None or self._alarm.when() < self._now()):
            self._alarm = asyncio.get_running_loop().call_later(left_s, self._look)

    def _look(self) -> None:
        self._alarm = None
        self.progress()
        if self._waiters:
            self._set_alarm()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _closed(self) -> LogClosedError:
        path = "memory" if self.disk is None else str(self.disk.writer.path)
        return LogClosedError(path=path, position=self.durable_position)


def _nothing() -> None:
    """Nobody follows."""


def _identity_of(command: Command) -> ChangeIdentity | None:
    match command:
        case Update(change) | Contribute(change) | Exchange(change):
            return change.identity
        case Remove(change) | Discount(change) | WriteRows(change):
            return change.identity
        case Void(identity) | Begin(identity):
            return identity
        case _:
            return None
