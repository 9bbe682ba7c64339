"""A training's commands on the disk: the log, and the snapshot before it.

A load isn't in the log: it would be as large as the tables. A *gap* stands for it, and nothing
from there on counts as durable before a snapshot has it. So it is with a log that begins
beside a training: nothing is durable before the first snapshot.
"""

import asyncio
from typing import Any

from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_pserver.durability.recovery import GAP
from paramfleet_pserver.durability.snapshot_files import SnapshotFile

__all__ = ["DiskLog"]


class DiskLog:
    """The log of one training. Used from one event loop.

    Args:
        writer: Of the log; closed with this.
        snapshot: The newest; None while the first one is written.
        gap: Where a gap is, behind which the log was cut off; None for none.
        replayed_bytes: Of the commands that were executed again behind the snapshot.
    """

    def __init__(
        self,
        writer: LogWriter,
        *,
        snapshot: SnapshotFile | None,
        gap: int | None = None,
        replayed_bytes: int = 0,
    ) -> None:
        self.writer = writer
        self.began_at = writer.position
        """Which position this process goes on from."""
        self.snapshot = snapshot
        self.num_bytes = replayed_bytes
        """Of the commands behind the newest snapshot."""
        self.snapshot_wanted = asyncio.Event()
        """Set while changes wait for a snapshot."""
        self._gap = gap
        if gap is not None:
            self.snapshot_wanted.set()

    def append(self, body: bytes, *, is_gap: bool) -> None:
        """Append a command, or the gap that stands for it; ``writer.check`` has passed."""
        position = self.writer.append(GAP if is_gap else body)
        self.num_bytes += len(body)
        if is_gap:
            self._gap = position
            self.snapshot_wanted.set()

    def note_snapshot(self, snapshot: SnapshotFile, *, num_bytes: int) -> None:
        """Count the log from a snapshot on.

        Args:
            snapshot: It is on the disk, and so is the log before it.
            num_bytes: ``num_bytes`` of the log when it was taken.
        """
        self.snapshot = snapshot
        self.num_bytes -= num_bytes
        if self._gap is not None and snapshot.position >= self._gap:
            self._gap = None
            self.snapshot_wanted.clear()
        self.writer.truncate(snapshot.position + 1)

    @property
    def durable_position(self) -> int:
        """Return up to which position a process that is started again has all commands."""
        if self.snapshot is None:
            return 0
        durable = self.writer.durable_position
        return durable if self._gap is None else min(durable, self._gap - 1)

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        fault, snapshot = self.writer.fault, self.snapshot
        return {
            "state": self.writer.state,
            "fault": None if fault is None else str(fault),
            "refusing": fault is not None,
            "waiting_bytes": self.writer.waiting_bytes,
            "began_at": self.began_at,
            "snapshot_position": None if snapshot is None else snapshot.position,
            "bytes_since_snapshot": self.num_bytes,
        }
