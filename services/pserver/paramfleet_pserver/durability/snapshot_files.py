"""Snapshots as files: written under another name first, so that one with its name is whole.

A file is a header and frames. All numbers are little-endian::

    magic "PFSF" | version u8 | 3 zero bytes | position u64 | length of the job's name u32
    the job's name | CRC-32 of all before, u32
    frame: length u64 | CRC-32 of the message u32 | 4 zero bytes | message

The last message says how many there are, so a file that is cut short is noticed.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.errors.logs import SnapshotDamagedError, SnapshotOfOtherJobError
from paramfleet_shared.files.regular_files import CREATE, open_regular
from paramfleet_shared.net.wire.message import Message, decode, encode
from paramfleet_shared.settings.failpoints import failpoint

__all__ = ["SnapshotFile", "newest_snapshot", "read_snapshot", "write_snapshot"]

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
    assert len(job.encode()) <= _MAX_JOB_BYTES, "the caller has short names"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"snapshot-{position:016d}.state"
    draft = path.with_suffix(".draft")
    try:
        with os.fdopen(os.open(draft, CREATE, 0o600), "wb") as file:
            header = _HEADER.pack(_MAGIC, _VERSION, position, len(job.encode())) + job.encode()
            file.write(header + _CHECKSUM.pack(zlib.crc32(header)))
            for message in messages:
                body = b"".join(encode(message))
                file.write(_FRAME.pack(len(body), zlib.crc32(body)))
                file.write(body)
                failpoint("snapshot_half_written")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        _sync(folder)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    for former in _snapshots(folder):
        if former.position < position:
            former.path.unlink(missing_ok=True)
    return SnapshotFile(position, path)


def newest_snapshot(folder: Path) -> SnapshotFile | None:
    """Return the newest snapshot of a folder; None if there is none.

    Raises:
        OSError: if the system refuses.
    """
    return max(_snapshots(folder), default=None)


def read_snapshot(snapshot: SnapshotFile, *, job: str) -> Iterator[Message]:
    """Yield the messages of a snapshot.

    Args:
        snapshot: It.
        job: The job's name: a snapshot of another isn't read.

    Raises:
        SnapshotOfOtherJobError: if it is of another job.
        SnapshotDamagedError: if a message isn't what was written.
        OSError: if the system refuses.
        MalformedMessageError: if a message is none.
    """
    try:
        file = open_regular(snapshot.path)
    except ValueError as error:
        raise SnapshotDamagedError(part=0, reason=f"{snapshot.path} {error}") from error
    with file:
        left = os.fstat(file.fileno()).st_size
        left -= _check_header(file, snapshot, job)
        part = 0
        while left:
            part += 1
            frame = file.read(_FRAME.size)
            if len(frame) < _FRAME.size:
                raise SnapshotDamagedError(part=part, reason="its frame is cut short")
            length, checksum = _FRAME.unpack(frame)
            left -= _FRAME.size
            if length > left:
                reason = f"it has {length} bytes, and {left} follow"
                raise SnapshotDamagedError(part=part, reason=reason)
            left -= length
            body = bytearray(length)
            if file.readinto(body) != length or zlib.crc32(body) != checksum:
                raise SnapshotDamagedError(part=part, reason="its checksum is wrong")
            yield decode(body)


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
