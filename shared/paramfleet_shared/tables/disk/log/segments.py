"""The log: what was put and removed, one call behind the other, before it is in the pages.

A segment is a file: a slot that says whose it is, then records. A record is a header, keys, and
of puts their rows; it counts wholly or not at all. A new segment is begun only when the one
before is on the disk, so only the last one may have a torn end.
"""

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.system import System, write_error
from paramfleet_shared.tables.disk.errors import TierDamagedError
from paramfleet_shared.tables.disk.pages.header import (
    SLOT_BYTES,
    TierState,
    pack_slot,
    unpack_slot,
)

__all__ = ["MAX_SEGMENT_BYTES", "PUT", "REMOVE", "Record", "Segment", "segments_in"]

PUT, REMOVE = 1, 2

MAX_SEGMENT_BYTES = 1 << 40

_MAGIC = b"PFtier\0l"
_RECORD_MAGIC = 0x50466C72
_RECORD = struct.Struct("<IIIIQQ")
"""Magic, checksum of all behind it, kind, keys, number in the segment, bytes of the segment
that were on the disk."""
_CHECKED_FROM = 8


class Record(NamedTuple):
    """A record that was read."""

    kind: int
    keys: NDArray[np.uint64]
    rows_offset: int
    """Of the first row, in the segment."""


class Segment:
    """A segment that is open.

    Args:
        folder: Where it is.
        number: Which one.
        state: Of the tier.
        system: The calls of the system.

    Raises:
        OSError: if it can't be opened.
    """

    def __init__(self, folder: Path, number: int, state: TierState, system: System) -> None:
        self.number = number
        self.path = folder / f"log-{number:08}"
        self.end = SLOT_BYTES
        self.synced = 0
        self._num_records = 0
        self._system = system
        self._row_bytes = state.row_bytes
        self._identity = {"salt": state.salt, "segment": number}
        self.file, _ = system.open(self.path, direct=False)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no records."""
        return not self._num_records

    def begin(self) -> None:
        """Say in a new segment whose it is.

        Raises:
            TierFullError: if there is no room.
            TierFailedError: if the system refuses.
        """
        try:
            self._system.truncate(self.file, 0)
            self._system.write(self.file, [pack_slot(_MAGIC, self._identity)], 0)
            self._system.sync(self.file)
            self._system.sync_folder(self.path.parent)
        except OSError as error:
            failure = write_error(self.path, error, is_whole=True)
            raise failure from error

    def append(
        self, kind: int, keys: NDArray[np.uint64], rows: NDArray[np.uint32] | None
    ) -> int:
        """Write a record; return where in the segment its first row is.

        Raises:
            TierFullError: if there is no room; the segment is as before.
            TierFailedError: if the system refuses.
        """
        parts = [keys.data.cast("B")] if keys.size else []
        if rows is not None and rows.size:
            parts.append(rows.data.cast("B"))
        num_bytes = _RECORD.size + sum(map(len, parts))
        parts.append(memoryview(bytes(-num_bytes % 8)))
        start = _RECORD.pack(_RECORD_MAGIC, 0, kind, keys.size, self._num_records, self.synced)
        checksum = zlib.crc32(start[_CHECKED_FROM:])
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        start = start[:4] + struct.pack("<I", checksum) + start[_CHECKED_FROM:]
        try:
            self._system.write(self.file, [start, *parts], self.end)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._system.truncate(self.file, self.end)
            failure = write_error(self.path, error, is_whole=True)
            raise failure from error
        offset = self.end + _RECORD.size + keys.nbytes
        self.end += num_bytes + -num_bytes % 8
        self._num_records += 1
        return offset

    def sync(self) -> None:
        """Wait until all records are on the disk.

        Raises:
            TierFailedError: if the system refuses: nobody knows what of them is there.
        """
        if self.synced < self.end:
            try:
                self._system.sync(self.file)
            except OSError as error:
                failure = write_error(self.path, error, is_whole=False)
                raise failure from error
            self.synced = self.end

    def records(self, *, is_last: bool) -> Iterator[Record]:
        """Yield the records there are, and go on behind them.

        Args:
            is_last: Whether its end may be torn; that is cut off then.

        Raises:
            TierDamagedError: if what was on the disk can't be read.
            OSError: if the system refuses.
        """
        size = os.fstat(self.file).st_size
        with contextlib.ExitStack() as stack:
            memory = memoryview(b"")
            if size:
                mapping = mmap.mmap(self.file, size, access=mmap.ACCESS_READ)
                mapped = stack.enter_context(mapping)
                memory = stack.enter_context(memoryview(mapped))
            if unpack_slot(_MAGIC, bytes(memory[:SLOT_BYTES])) != self._identity:
                if not is_last or size > SLOT_BYTES:
                    raise self._damaged(0, "it isn't a segment of this log")
                self.begin()  # a crash came before it had a record
                return
            while (record := self._record_at(memory)) is not None:
                yield record
            if self.end < size:
                if not is_last or self._is_synced_behind(memory):
                    raise self._damaged(self.end, "a record isn't what was written")
                self._system.truncate(self.file, self.end)
        self._system.sync(self.file)
        self.synced = self.end

    def close(self) -> None:
        """Close the file; idempotent."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def _damaged(self, offset: int, reason: str) -> FleetError:
        return TierDamagedError(path=str(self.path), where=f"byte {offset:,}", reason=reason)

    def _record_at(self, memory: memoryview) -> Record | None:
        """Return the record at the end of what was read, and go behind it; None without one."""
        if self.end + _RECORD.size > len(memory):
            return None
        magic, checksum, kind, num_keys, number, _ = _RECORD.unpack_from(memory, self.end)
        rows_bytes = num_keys * self._row_bytes if kind == PUT else 0
        num_bytes = _RECORD.size + 8 * num_keys + rows_bytes
        stop = self.end + num_bytes + -num_bytes % 8
        if magic != _RECORD_MAGIC or number != self._num_records or stop > len(memory):
            return None
        if zlib.crc32(memory[self.end + _CHECKED_FROM : stop]) != checksum:
            return None
        keys = np.frombuffer(memory, np.uint64, num_keys, self.end + _RECORD.size).copy()
        record = Record(kind, keys, self.end + _RECORD.size + keys.nbytes)
        self.end = stop
        self._num_records += 1
        return record

    def _is_synced_behind(self, memory: memoryview) -> bool:
        """Return whether a later record says that the broken place had been on the disk."""
        magic, content = struct.pack("<I", _RECORD_MAGIC), memory.obj
        assert isinstance(content, mmap.mmap)
        at = content.find(magic, self.end + 8)
        while 0 <= at <= len(memory) - _RECORD.size:
            _, checksum, kind, num_keys, _, synced = _RECORD.unpack_from(memory, at)
            row_bytes = self._row_bytes if kind == PUT else 0
            num_bytes = _RECORD.size + num_keys * (8 + row_bytes)
            stop = at + num_bytes + -num_bytes % 8
            may_be = synced > self.end and stop <= len(memory)
            if may_be and zlib.crc32(memory[at + _CHECKED_FROM : stop]) == checksum:
                return True
            at = content.find(magic, at + 8)
        return False


def segments_in(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, in order.

    Raises:
        OSError: if it can't be read.
    """
    names = (path.name.removeprefix("log-") for path in folder.glob("log-*"))
    return sorted(int(name) for name in names if name.isdigit())
