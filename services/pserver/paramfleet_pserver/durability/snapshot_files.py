"""Snapshots as files: written under another name first, so that one with its name is whole.

A file is a header and frames. All numbers are little-endian::

    magic "PFSF" | version u8 | 3 zero bytes | position u64 | length of the job's name u32
    the job's name | CRC-32 of all before, u32
    frame: length u64 | CRC-32 of the message u32 | 4 zero bytes | message

The last message says how many there are, so a file that is cut short is noticed.
"""

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import NamedTuple

from paramfleet_pserver.durability.log.core.layout import MAX_SEGMENT_BYTES
from paramfleet_shared.errors.logs import SnapshotDamagedError, SnapshotOfOtherJobError
from paramfleet_shared.files.regular_files import CREATE, open_regular
from paramfleet_shared.net.wire.message import (
    Buffer,
    MalformedMessageError,
    Message,
    WireVersionError,
    decode,
    encode,
)
from paramfleet_shared.settings.failpoints import failpoint

__all__ = [
    "SnapshotDraft",
    "SnapshotFile",
    "newest_snapshot",
    "read_snapshot",
    "write_snapshot",
]

_MAGIC, _VERSION = b"PFSF", 1
_HEADER = struct.Struct("<4sB3xQI")
_CHECKSUM = struct.Struct("<I")
_FRAME = struct.Struct("<QI4x")
_NAME = re.compile(r"snapshot-(\d{16})\.state")
_MAX_JOB_BYTES = 255


class SnapshotFile(NamedTuple):
    """A file whose name is a snapshot's."""

    position: int
    """Of the last command that it has the effect of."""
    path: Path


def write_snapshot(
    folder: Path, position: int, messages: Iterable[Message], *, job: str
) -> SnapshotFile:
    """Write a snapshot, wait until it is on the disk, and remove those before it.

    Args:
        folder: Where to; made if it is missing.
        position: Of the last command that it has the effect of.
        messages: As ``snapshot_of`` yields them.
        job: The job's name, its epoch included.

    Raises:
        OSError: if the system refuses; what there was stays.
    """
    draft = SnapshotDraft(folder, position, job=job)
    try:
        draft.begin()
        for message in messages:
            draft.write(message)
        return draft.commit()
    except BaseException:
        draft.abandon()
        raise


class SnapshotDraft:
    """A snapshot that is being written. Any thread may use it, one at a time.

    ``begin`` comes first, and ``commit`` or ``abandon`` last; both whatever has failed before.

    Args:
        folder: Where to; made if it is missing.
        position: Of the last command that it has the effect of.
        job: The job's name, its epoch included.
    """

    def __init__(self, folder: Path, position: int, *, job: str) -> None:
        assert len(job.encode()) <= _MAX_JOB_BYTES, "the caller has short names"
        self._folder = folder
        self._job = job.encode()
        self._whole = SnapshotFile(position, folder / f"snapshot-{position:016d}.state")
        self._path = self._whole.path.with_suffix(".draft")
        self._file: BufferedWriter | None = None

    def begin(self) -> None:
        """Make the file, and remove what processes that were killed have left of theirs.

        Raises:
            OSError: if the system refuses.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for draft in self._folder.glob("snapshot-*.draft"):
            if draft != self._path:
                draft.unlink(missing_ok=True)
        file = self._file = os.fdopen(os.open(self._path, CREATE, 0o600), "wb")
        header = _HEADER.pack(_MAGIC, _VERSION, self._whole.position, len(self._job))
        header += self._job
        file.write(header + _CHECKSUM.pack(zlib.crc32(header)))

    def write(self, message: Message) -> None:
        """Add a message.

        Raises:
            OSError: if the system refuses.
        """
        assert self._file is not None, "it has begun"
        buffers = encode(message)
        checksum = 0
        for buffer in buffers:
            checksum = zlib.crc32(buffer, checksum)
        self._file.write(_FRAME.pack(sum(map(_length_of, buffers)), checksum))
        for buffer in buffers:
            self._file.write(buffer)
        failpoint("snapshot_half_written")

    def commit(self) -> SnapshotFile:
        """Wait until all is on the disk, give it its name, and remove the snapshots before it.

        Raises:
            OSError: if the system refuses.
        """
        assert self._file is not None, "it has begun"
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._path.rename(self._whole.path)
        _sync(self._folder)
        for former in _snapshots(self._folder):
            if former.position < self._whole.position:
                former.path.unlink(missing_ok=True)
        return self._whole

    def abandon(self) -> None:
        """Leave nothing behind. What was there before stays."""
        with contextlib.suppress(OSError):  # what is still to be written has no room either
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def newest_snapshot(folder: Path) -> SnapshotFile | None:
    """Return the newest snapshot of a folder; None if there is none.

    Raises:
        OSError: if the system refuses.
    """
    return max(_snapshots(folder), default=None)


def read_snapshot(
    snapshot: SnapshotFile, *, job: str, note_read: Callable[[int], None] | None = None
) -> Iterator[Message]:
    """Yield the messages of a snapshot.

    Args:
        snapshot: It.
        job: The job's name: a snapshot of another isn't read.
        note_read: Is told how many bytes were read for each message, when that was taken.

    Raises:
        SnapshotOfOtherJobError: if it is of another job.
        SnapshotDamagedError: if a message isn't what was written.
        OSError: if the system refuses.
    """
    try:
        file = open_regular(snapshot.path)
    except ValueError as error:
        raise SnapshotDamagedError(part=0, reason=f"{snapshot.path} {error}") from error
    with file:
        left = os.fstat(file.fileno()).st_size
        num_read = _check_header(file, snapshot, job)
        left -= num_read
        part = 0
        while left:
            part += 1
            frame = file.read(_FRAME.size)
            if len(frame) < _FRAME.size:
                raise SnapshotDamagedError(part=part, reason="its frame is cut short")
            length, checksum = _FRAME.unpack(frame)
            left -= _FRAME.size
            if length > min(left, MAX_SEGMENT_BYTES):
                reason = f"it has {length} bytes, and {left} follow"
                if length > MAX_SEGMENT_BYTES:
                    reason = f"it has {length} bytes, more than any message"
                raise SnapshotDamagedError(part=part, reason=reason)
            left -= length
            body = bytearray(length)
            if file.readinto(body) != length or zlib.crc32(body) != checksum:
                raise SnapshotDamagedError(part=part, reason="its checksum is wrong")
            yield _message_of(body, part)
            if note_read is not None:
                note_read(num_read + _FRAME.size + length)
                num_read = 0


def _message_of(body: bytearray, part: int) -> Message:
    """Return a frame's message.

    Raises:
        SnapshotDamagedError: if it is none, or one of another version.
    """
    try:
        return decode(body)
    except (MalformedMessageError, WireVersionError) as error:
        raise SnapshotDamagedError(part=part, reason=str(error)) from error


def _check_header(file: BufferedReader, snapshot: SnapshotFile, job: str) -> int:
    """Return how many bytes a header has that belongs to this file.

    Raises:
        SnapshotOfOtherJobError: if it is of another job.
        SnapshotDamagedError: if it isn't what was written.
    """
    fixed = file.read(_HEADER.size)
    length = _HEADER.unpack(fixed)[3] if len(fixed) == _HEADER.size else 0
    name = file.read(min(length, _MAX_JOB_BYTES))
    checksum = file.read(_CHECKSUM.size)
    if checksum != _CHECKSUM.pack(zlib.crc32(fixed + name)):
        raise SnapshotDamagedError(part=0, reason=f"the header of {snapshot.path} is damaged")
    magic, version, position, _ = _HEADER.unpack(fixed)
    if (magic, version, position) != (_MAGIC, _VERSION, snapshot.position):
        reason = f"{snapshot.path} has the header of version {version}, position {position}"
        raise SnapshotDamagedError(part=0, reason=reason)
    found = name.decode(errors="replace")
    if found != job:
        raise SnapshotOfOtherJobError(path=str(snapshot.path), found=found, job=job)
    return len(fixed) + len(name) + len(checksum)


def _length_of(buffer: Buffer) -> int:
    return memoryview(buffer).nbytes


def _snapshots(folder: Path) -> list[SnapshotFile]:
    if not folder.is_dir():
        return []
    names = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [SnapshotFile(int(name[1]), path) for name, path in names if name]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
