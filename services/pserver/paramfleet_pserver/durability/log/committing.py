"""Group commit: batches go to segments, and are kept in memory until they are on the disk.

A segment is made under another name, and gets its own when its first batches are on the disk.
So each segment that has its name was whole up to there; and one that begins at a position
before the end of the segment before replaces the rest of that.

After a failed write or sync nobody knows what of the rest is on the disk, and a second sync
could succeed without having written it. So that segment isn't used any more: what wasn't
durable goes to a new one.
"""

import contextlib
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paramfleet_pserver.durability.log.core.batching import Buffer, CommandQueue, WaitingBatch
from paramfleet_pserver.durability.log.core.layout import SEGMENT_HEADER_BYTES, SegmentHeader
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.folder import LogFolder
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_shared.settings.failpoints import failpoint

__all__ = ["Committer", "Continuation", "Published"]


class Published(NamedTuple):
    """A segment that has its name."""

    path: Path
    first: int
    """Position of its first command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """Where a log is continued."""

    job: str
    durable: int
    """Durable position: what is behind it goes to the next segment."""
    number: int
    """The greatest number that a segment has."""
    term: int
    """Of the last command."""
    segments: Sequence[Published] = ()
    """Those that there are, in order."""
    carried: Sequence[tuple[int, Buffer]] = ()
    """Term and bytes of the commands behind the durable position that older segments hold. They
    must be in the next segment when it gets its name, since it replaces what holds them now."""


@dataclass
class _Open:
    """The segment that is written to."""

    header: SegmentHeader
    file: int
    size: int
    offset: int = SEGMENT_HEADER_BYTES


class Committer:
    """Writes what waits in a queue to the disk; used by one thread.

    Args:
        folder: Held by this process.
        queue: What waits.
        start: Where the log is continued.
        settings: The log's settings.
        disk: The calls of the system.
    """

    def __init__(
        self,
        folder: LogFolder,
        queue: CommandQueue,
        start: Continuation,
        settings: LogSettings,
        disk: Disk,
    ) -> None:
        for term, body in start.carried:
            queue.append(term, (body,))
        self.durable = start.durable
        """All commands up to this position are on the disk."""
        self.fault: OSError | None = None
        """Why the last turn wrote less than there was."""
        self._folder = folder
        self._queue = queue
        self._job = start.job
        self._settings = settings
        self._disk = disk
        self._number = start.number
        self._segments = list(start.segments)
        self._carried = start.durable + len(start.carried)
        self._is_begun = False
        self._unsynced: deque[WaitingBatch] = deque()
        self._open: _Open | None = None

    def turn(self) -> None:
        """Write what waits, and sync it; ``durable`` and ``fault`` say what came of it.

        A segment that fails is left, and a new one tried at once. If that fails too, it is for
        the next turn.
        """
        self._unsynced.extend(self._queue.take())
        while self._unsynced:
            was_open = self._open is not None
            try:
                self._commit()
            except OSError as error:
                self._leave()
                if not was_open:
                    self.fault = error
                    return
        self.fault = None

    def remove_before(self, position: int) -> None:
        """Remove the segments all of whose commands are before a position.

        The newest segment stays.

        Raises:
            OSError: if the system refuses; what it refused stays, and is removed another time.
        """
        # One by one, and the oldest first: a crash leaves no gap.
        while len(self._segments) > 1 and self._segments[1].first <= position:
            self._disk.remove(self._segments[0].path)
            del self._segments[0]

    def close(self) -> None:
        """Close the files. What isn't durable is lost with the memory."""
        if self._open is not None:
            self._disk.close(self._open.file)
            self._open = None

    def _commit(self) -> None:
        """Write and sync the batches that fit into the segment, or into a new one.

        Raises:
            OSError: if the system refuses.
        """
        batches: list[WaitingBatch] = []
        if self._open is not None:
            batches = self._fitting(self._open.size - self._open.offset)
        if self._open is not None and batches:
            self._write(self._open, batches)
        else:
            batches = self._begin()
        for batch in batches:
            self._unsynced.popleft()
            self._queue.release(batch)
            self.durable = batch.last

    def _fitting(self, num_bytes: int) -> list[WaitingBatch]:
        """Return the batches, from the oldest on, that have so many bytes together."""
        fitting = []
        for batch in self._unsynced:
            num_bytes -= batch.size
            if num_bytes < 0:
                break
            fitting.append(batch)
        return fitting

    def _begin(self) -> list[WaitingBatch]:
        """Make a segment with its first batches; return those.

        Raises:
            OSError: if the system refuses.
        """
        self.close()
        self._number += 1
        must = [batch.size for batch in self._unsynced if batch.first <= self._carried]
        least = sum(must) or self._unsynced[0].size
        size = max(self._settings.segment_bytes, SEGMENT_HEADER_BYTES + least)
        batches = self._fitting(size - SEGMENT_HEADER_BYTES)
        header = SegmentHeader(
            job=self._job,
            number=self._number,
            term=batches[0].term,
            first=batches[0].first,
            published=batches[-1].last,
            salt=secrets.randbits(64),
        )
        self._open = self._publish(header, size, batches)
        return batches

    def _publish(self, header: SegmentHeader, size: int, batches: list[WaitingBatch]) -> _Open:
        """Make a segment's file, and give it its name when its first batches are on the disk.

        Raises:
            OSError: if the system refuses; what was made is removed as far as it can be.
        """
        draft, path = self._folder.draft(header.number), self._folder.segment(header.number)
        segment = _Open(header, self._disk.create(draft, size), size)
        try:
            self._disk.write(segment.file, [header.to_bytes()], 0)
            self._write(segment, batches)
            self._disk.rename(draft, path)
        except BaseException:
            self._disk.close(segment.file)
            for name in (path, draft):
                with contextlib.suppress(OSError):
                    self._disk.remove(name)
            raise
        self._replace(Published(path, header.first))
        if not self._is_begun:
            with contextlib.suppress(OSError):  # with the next segment
                self._disk.mark(self._folder.begun)
                self._is_begun = True
        return segment

    def _write(self, segment: _Open, batches: list[WaitingBatch]) -> None:
        """Write batches and sync them.

        Raises:
            OSError: if the system refuses.
        """
        parts: list[Buffer] = []
        for batch in batches:
            parts += batch.written(segment.header, synced=self.durable)
        failpoint("before_write")
        self._disk.write(segment.file, parts, segment.offset)
        failpoint("before_sync")
        self._disk.sync(segment.file)
        failpoint("after_sync")
        segment.offset += sum(batch.size for batch in batches)

    def _replace(self, new: Published) -> None:
        """Count a segment that has got its name, and remove those that it replaces."""
        while self._segments and self._segments[-1].first >= new.first:
            with contextlib.suppress(OSError):  # a reader passes over it
                self._disk.remove(self._segments[-1].path)
            self._segments.pop()
        self._segments.append(new)

    def _leave(self) -> None:
        """Use the open segment no more."""
        with contextlib.suppress(OSError):
            self.close()
        self._open = None
