"""Opening a log: which segments there are, what they hold for certain, and where it ends.

Of the last segment the rest may be torn: what no sync had confirmed is left out from the first
place on that isn't whole (*torn tail*). What a later batch, a later segment or the segment's
header confirms as synced must be whole, else the log is damaged.

The whole commands behind the last confirmed position are kept, and written again to the next
segment: a process that was killed may have got an error for their sync, after which the file
reads well from the system's memory and isn't on the disk.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

from paramfleet_pserver.durability.log.committing import Continuation, Published
from paramfleet_pserver.durability.log.core.layout import (
    MAX_JOB_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
)
from paramfleet_pserver.durability.log.core.reading import SegmentReader, Stop, end_of
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.folder import LogFolder, SegmentFile
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.errors.logs import LogDamagedError, LogOfOtherJobError
from paramfleet_shared.system.clock import Clock

__all__ = ["LoggedCommand", "OpenedLog", "open_log"]


class LoggedCommand(NamedTuple):
    """A command as it was appended."""

    position: int
    term: int
    body: memoryview


class _Segment(NamedTuple):
    file: SegmentFile
    header: SegmentHeader

    def damaged(self, stop: Stop) -> LogDamagedError:
        reason = stop.reason or "commands that were on the disk are lacking"
        return LogDamagedError(
            path=str(self.file.path), offset=stop.offset, position=stop.position, reason=reason
        )


def open_log(path: Path, *, job: str, held: int = 0) -> "OpenedLog":
    """Open a log, and lock its folder until it is closed.

    Args:
        path: The folder; made if it is missing.
        job: The job's name, its epoch included: commands of another aren't read.
        held: Up to this position the caller has the commands' effect, from a snapshot. They
            must have been durable; an empty log begins behind it.

    Raises:
        LogInUseError: if somebody else has the folder.
        LogOfOtherJobError: if it holds the log of another job.
        LogDamagedError: if commands behind ``held`` that were on the disk can't be read.
        OSError: if the system refuses.
    """
    assert len(job.encode()) <= MAX_JOB_BYTES, "the caller has short names"
    folder = LogFolder(path)
    try:
        folder.remove_drafts()
        return OpenedLog(folder, job, held)
    except BaseException:
        folder.close()
        raise


@final
class OpenedLog:
    """A log that was found; ``commands`` to execute them again, then ``continue_with``.

    Args:
        folder: Held by this process.
        job: The job's name.
        held: Position of the caller's snapshot.

    Raises:
        LogOfOtherJobError: if it holds the log of another job.
        LogDamagedError: if commands behind ``held`` that were on the disk can't be read.
        OSError: if the system refuses.
    """

    def __init__(self, folder: LogFolder, job: str, held: int) -> None:
        self._folder = folder
        self._job = job
        self._segments = _in_force([_identified(file, job) for file in folder.segments()])
        self.first_position = held + 1
        """Of the first command there is."""
        self.last_position = held
        """Of the last command there is."""
        self.confirmed_position = held
        """Up to this position a later sync confirms that the commands were on the disk."""
        self.term = 0
        """Of the last command."""
        self._content: dict[int, bytes] = {}
        """Of the last segment, by its number: it is read several times."""
        self.torn: Stop | None = None
        """Where a torn tail was cut off; None if the log ended whole."""
        if self._segments:
            self._read_end(held)
        elif folder.begun.exists():
            reason = "its segments were removed by another process or user"
            raise LogDamagedError(
                path=str(folder.path), offset=0, position=held + 1, reason=reason
            )

    def commands(self, first: int) -> Iterator[LoggedCommand]:
        """Yield the commands from a position on, in order; segments are read as they come.

        Raises:
            LogDamagedError: if one that was on the disk can't be read.
            OSError: if the system refuses.
        """
        if first < self.first_position and first <= self.last_position:
            raise self._lacking(first)
        term = 0
        for index, segment in enumerate(self._segments):
            is_last = index + 1 == len(self._segments)
            end = self.last_position + 1
            if not is_last:
                end = self._segments[index + 1].header.first
            if end <= first:
                continue
            if segment.header.term < term:
                reason = f"it is of term {segment.header.term}, and follows one of {term}"
                raise segment.damaged(Stop(0, segment.header.first, reason))
            for command in _commands(segment, self._content_of(segment), end):
                term = command.term
                if command.position >= first:
                    yield command

    def continue_with(
        self,
        *,
        term: int,
        clock: Clock,
        settings: LogSettings | None = None,
        disk: Disk | None = None,
    ) -> LogWriter:
        """Return a writer that continues behind the last command; it closes the folder.

        Args:
            term: Of what is appended first; not less than ``term`` of the log.
            clock: Measures the time between syncs.
            settings: The log's settings.
            disk: The calls of the system.

        Raises:
            LogTermError: if the term is lower than that of the log.
            LogDamagedError: as ``commands``.
            OSError: if the system refuses.
        """
        start = Continuation(
            job=self._job,
            durable=self.confirmed_position,
            number=self._folder.highest_number(),
            term=self.term,
            segments=[Published(s.file.path, s.header.first) for s in self._segments],
            carried=[(c.term, c.body) for c in self.commands(self.confirmed_position + 1)],
        )
        self._content.clear()
        return LogWriter(
            self._folder,
            start,
            term=term,
            settings=settings or LogSettings(),
            clock=clock,
            disk=disk or Disk(),
        )

    def close(self) -> None:
        """Give the folder back; not if a writer continues."""
        self._folder.close()

    def _read_end(self, held: int) -> None:
        """Find where the log ends.

        Raises:
            LogDamagedError: if commands that were on the disk can't be read.
            OSError: if the system refuses.
        """
        last = self._segments[-1]
        content = self._content[last.file.number] = _content(last)
        stop, synced, self.term = end_of(content, last.header)
        synced = max(synced, held)
        if stop.position <= synced:
            raise last.damaged(stop)
        self.torn = stop if stop.reason else None
        self.first_position = self._segments[0].header.first
        self.last_position = stop.position - 1
        self.confirmed_position = synced
        if held + 1 < self.first_position:
            raise self._lacking(held + 1)

    def _content_of(self, segment: _Segment) -> bytes:
        """Return a segment's bytes.

        Raises:
            LogDamagedError: if it isn't a file any more.
            OSError: if the system refuses.
        """
        return self._content.get(segment.file.number) or _content(segment)

    def _lacking(self, position: int) -> LogDamagedError:
        return LogDamagedError(
            path=str(self._folder.path),
            offset=0,
            position=position,
            reason=f"the oldest segment begins with command {self.first_position}",
        )


def _identified(file: SegmentFile, job: str) -> _Segment:
    """Return a segment with its header.

    Raises:
        LogOfOtherJobError: if it is of another job.
        LogDamagedError: if it has no header.
        OSError: if the system refuses.
    """
    try:
        header = SegmentHeader.of(file.content(SEGMENT_HEADER_BYTES))
    except ValueError as error:
        raise LogDamagedError(
            path=str(file.path), offset=0, position=0, reason=str(error)
        ) from error
    if header.number != file.number:
        reason = f"it is segment {header.number} under another name"
        raise LogDamagedError(path=str(file.path), offset=0, position=0, reason=reason)
    if header.job != job:
        raise LogOfOtherJobError(path=str(file.path.parent), found=header.job, job=job)
    return _Segment(file, header)


def _in_force(segments: list[_Segment]) -> list[_Segment]:
    """Return the segments less those that a later one replaces wholly.

    Raises:
        LogDamagedError: if one would replace commands that were on the disk before it was made.
    """
    kept: list[_Segment] = []
    for segment in segments:
        first = segment.header.first
        while kept and kept[-1].header.first == first:
            kept.pop()  # its writer didn't know whether it had got its name
        if kept and first <= kept[-1].header.published:
            reason = f"it begins before the end of {kept[-1].file.path.name}"
            raise segment.damaged(Stop(0, first, reason))
        kept.append(segment)
    return kept


def _content(segment: _Segment) -> bytes:
    """Return a segment's bytes.

    Raises:
        LogDamagedError: if it isn't a file any more.
        OSError: if the system refuses.
    """
    try:
        return segment.file.content()
    except ValueError as error:
        raise segment.damaged(Stop(0, segment.header.first, str(error))) from error


def _commands(segment: _Segment, content: bytes, end: int) -> Iterator[LoggedCommand]:
    """Yield a segment's commands up to a position, which isn't among them.

    Raises:
        LogDamagedError: if they aren't all there.
    """
    reader = SegmentReader(content, segment.header)
    for batch in reader:
        for position, body in enumerate(batch.commands, batch.header.first):
            if position >= end:
                return
            yield LoggedCommand(position, batch.header.term, body)
    if reader.stop.position < end:
        raise segment.damaged(reader.stop)
