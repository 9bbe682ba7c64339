"""The commands of a training on their way to the disk, and how far each worker's changes are.

A command is encoded and has room in the log before it is executed, and is appended right after:
what is refused is in no log. What had no effect isn't appended.
"""

from collections import deque
from typing import Any, NamedTuple

from paramfleet_pserver.commands.codec import to_bytes
from paramfleet_pserver.commands.machine import Outcome
from paramfleet_pserver.commands.records import (
    Command,
    Contribute,
    Exchange,
    Remove,
    Update,
    Void,
)
from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.durability.log.writer import LogWriter
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
    """

    def __init__(self, writer: LogWriter, identities: IdentityWindow) -> None:
        self.writer = writer
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
        body = to_bytes(command)
        self.writer.check(len(body))
        return body

    def note(self, command: Command, body: bytes, outcome: Outcome) -> None:
        """Append a command that was executed just now."""
        if not outcome.is_fresh or not outcome.is_changed:
            return
        position = self.writer.append(body)
        identity = _identity_of(command)
        if identity is not None:
            following = self._identities.next_of(identity.worker)
            self._reached.append(
                _Reached(position, identity.worker, identity.incarnation, following)
            )

    def durable_before(self, worker: int, incarnation: int) -> int:
        """Return the first sequence of a worker's incarnation that may not be durable."""
        has_gap = has_defect("durable_before_log")
        durable = self.writer.position if has_gap else self.writer.durable_position
        while self._reached and self._reached[0].position <= durable:
            reached = self._reached.popleft()
            self._durable[reached.worker] = (reached.incarnation, reached.next)
        found, following = self._durable.get(worker, (incarnation, FIRST_SEQUENCE))
        return following if found == incarnation else FIRST_SEQUENCE

    @property
    def is_settled(self) -> bool:
        """Return whether all that is executed is durable."""
        return self.writer.durable_position >= self.writer.position

    async def settle(self) -> None:
        """Wait until all that is executed is durable.

        Raises:
            LogClosedError: if the log is closed before.
        """
        await self.writer.durable(self.writer.position)

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
            "position": self.writer.position,
            "durable_position": self.writer.durable_position,
            "waiting_bytes": self.writer.waiting_bytes,
        }


def _identity_of(command: Command) -> ChangeIdentity | None:
    match command:
        case Update(change) | Contribute(change) | Exchange(change) | Remove(change):
            return change.identity
        case Void(identity):
            return identity
        case _:
            return None
