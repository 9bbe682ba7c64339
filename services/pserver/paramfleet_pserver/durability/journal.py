"""The commands of a training on their way to the disk, and how far each worker's changes are.

A command is encoded and has room in the log before it is executed, and is appended right after:
what is refused is in no log. What had no effect isn't appended.

A load isn't appended: it would be as large as the tables. A *gap* stands for it, and nothing
from there on counts as durable before a snapshot has it.
"""

import asyncio
from collections import deque
from typing import Any, NamedTuple

from paramfleet_pserver.commands.codec import to_bytes
from paramfleet_pserver.commands.machine import Outcome
from paramfleet_pserver.commands.records import (
    Command,
    Contribute,
    Exchange,
    Load,
    Remove,
    Update,
    Void,
)
from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_pserver.durability.recovery import GAP
from paramfleet_pserver.durability.snapshot_files import SnapshotFile
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.settings.failpoints import has_defect

__all__ = ["Journal"]


class _Reached(NamedTuple):
    """How far a worker's changes are once a position of the log is durable."""

    position: int
    worker: int
    incarnation: int
    next: int
    """All changes before this sequence were taken."""


class Journal:
    """The log of one training. Used from one event loop.

    Args:
        writer: Of the log; closed with the journal.
        identities: Which changes were taken; those of now count as durable once all that the
            log holds is.
        snapshot: The newest.
        gap: Where a gap is, behind which the log was cut off; None for none.
        replayed_bytes: Of the commands that were executed again behind the snapshot.
    """

    def __init__(
        self,
        writer: LogWriter,
        identities: IdentityWindow,
        *,
        snapshot: SnapshotFile,
        gap: int | None = None,
        replayed_bytes: int = 0,
    ) -> None:
        self.writer = writer
        self.snapshot = snapshot
        self.num_bytes = replayed_bytes
        """Of the commands behind the newest snapshot."""
        self.snapshot_wanted = asyncio.Event()
        """Set while changes wait for a snapshot."""
        self.accepting = asyncio.Event()
        """Unset while requests are held back, for some milliseconds."""
        self.accepting.set()
        self._gap = gap
        self._closed_gap = asyncio.Event()
        if gap is not None:
            self.snapshot_wanted.set()
        self._identities = identities
        self._reached: deque[_Reached] = deque()
        self._durable: dict[int, tuple[int, int]] = {}
        for taken in identities.taken():
            if taken.incarnation == identities.incarnation(taken.worker):
                self._reached.append(
                    _Reached(writer.position, taken.worker, taken.incarnation, taken.next)
                )

    def encoded(self, command: Command) -> bytes:
        """Return a command as it will be appended; the caller executes it without a wait.

        Raises:
            DiskFullError: if the disk has no room.
            DiskFailingError: if it refuses to write.
            LogBehindError: if too much waits for it.
            CommandTooLargeError: if a command can't have so many bytes.
            LogClosedError: if the log is closed.
        """
        body = GAP if isinstance(command, Load) else to_bytes(command)
        self.writer.check(len(body))
        return body

    def note(self, command: Command, body: bytes, outcome: Outcome) -> None:
        """Append a command that was executed just now."""
        if not outcome.is_fresh or not outcome.is_changed:
            return
        position = self.writer.append(body)
        self.num_bytes += len(body)
        if isinstance(command, Load):
            self._gap = position
            self._closed_gap.clear()
            self.snapshot_wanted.set()
        identity = _identity_of(command)
        if identity is not None:
            following = self._identities.next_of(identity.worker)
            self._reached.append(
                _Reached(position, identity.worker, identity.incarnation, following)
            )

    def note_snapshot(self, snapshot: SnapshotFile, *, num_bytes: int) -> None:
        """Count the log from a snapshot on.

        Args:
            snapshot: It is on the disk, and so is the log before it.
            num_bytes: ``num_bytes`` of the journal when it was taken.
        """
        self.snapshot = snapshot
        self.num_bytes -= num_bytes
        if self._gap is not None and snapshot.position >= self._gap:
            self._gap = None
            self._closed_gap.set()
            self.snapshot_wanted.clear()
        self.writer.truncate(snapshot.position + 1)

    @property
    def durable_position(self) -> int:
        """Return up to which position a process that is started again has all commands."""
        durable = self.writer.durable_position
        return durable if self._gap is None else min(durable, self._gap - 1)

    def durable_before(self, worker: int, incarnation: int) -> int:
        """Return the first sequence of a worker's incarnation that may not be durable."""
        has_gap = has_defect("durable_before_log")
        durable = self.writer.position if has_gap else self.durable_position
        while self._reached and self._reached[0].position <= durable:
            reached = self._reached.popleft()
            self._durable[reached.worker] = (reached.incarnation, reached.next)
        found, following = self._durable.get(worker, (incarnation, FIRST_SEQUENCE))
        return following if found == incarnation else FIRST_SEQUENCE

    @property
    def is_settled(self) -> bool:
        """Return whether all that is executed is durable."""
        return self.durable_position >= self.writer.position

    async def settle(self) -> None:
        """Wait until all that is executed now is durable.

        Raises:
            LogClosedError: if the log is closed before.
        """
        position = self.writer.position
        await self.writer.durable(position)
        while self.durable_position < position:
            await self._closed_gap.wait()

    async def room(self) -> None:
        """Wait while more commands wait for the disk than may.

        Raises:
            LogClosedError: if the log is closed before.
        """
        while self.writer.state == "behind":
            await self.writer.durable(self.writer.durable_position + 1)

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        fault = self.writer.fault
        return {
            "state": self.writer.state,
            "fault": None if fault is None else str(fault),
            "refusing": fault is not None,
            "position": self.writer.position,
            "durable_position": self.durable_position,
            "waiting_bytes": self.writer.waiting_bytes,
            "snapshot_position": self.snapshot.position,
            "bytes_since_snapshot": self.num_bytes,
        }


def _identity_of(command: Command) -> ChangeIdentity | None:
    match command:
        case Update(change) | Contribute(change) | Exchange(change) | Remove(change):
            return change.identity
        case Void(identity):
            return identity
        case _:
            return None
