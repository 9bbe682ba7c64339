"""The batches of a segment's bytes, and why and where they stop."""

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from paramfleet_pserver.durability.log.core.layout import (
    ALIGNMENT_BYTES,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    HeaderError,
    SegmentHeader,
    padding,
)

__all__ = ["Batch", "End", "SegmentReader", "Stop", "end_of"]


class Batch(NamedTuple):
    """Commands that were written together."""

    header: BatchHeader
    commands: list[memoryview]
    """Views of the segment's bytes."""

    @property
    def last(self) -> int:
        """Return the position of its last command."""
        return self.header.first + self.header.count - 1


class Stop(NamedTuple):
    """Where the batches of a segment end, and why."""

    offset: int
    """Bytes from the beginning of the segment."""
    position: int
    """That the next command would have."""
    reason: str
    """What is wrong there, as the end of a sentence; empty if the segment just ends: nothing
    but zero bytes follow."""


class End(NamedTuple):
    """Where a log ends, by its last segment."""

    stop: Stop
    synced: int
    """Up to this position the commands are known to have been on the disk. If the segment stops
    before, it is damaged; if not, what is behind the stop is a torn tail."""
    term: int
    """Of the last batch that is whole."""


class SegmentReader:
    """Yields the batches of a segment as far as they are whole; then it knows why they stop.

    Args:
        content: The segment's bytes.
        header: Read of them before.
    """

    def __init__(self, content: bytes, header: SegmentHeader) -> None:
        self._content = content
        self._header = header
        self.stop = Stop(SEGMENT_HEADER_BYTES, header.first, "")
        """Where the batches read so far end."""
        self.synced = max(header.published, header.first - 1)
        """Up to this position the commands are known to have been on the disk, by all that was
        read so far."""
        self.term = header.term
        """Of the last batch read."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that are whole, in order."""
        while True:
            offset, position, _ = self.stop
            if _is_blank(self._content, offset):
                return
            try:
                batch = self._read(offset, position)
            except HeaderError as error:
                self.stop = Stop(offset, position, str(error))
                return
            self.synced = max(self.synced, batch.header.synced)
            self.term = batch.header.term
            end = offset + BATCH_HEADER_BYTES + batch.header.num_bytes
            self.stop = Stop(end, batch.last + 1, "")
            yield batch

    def _read(self, offset: int, position: int) -> Batch:
        """Read one batch.

        Raises:
            HeaderError: if it isn't whole.
        """
        header = BatchHeader.at(self._content, offset)
        self._check(header, offset, position)
        begin = offset + BATCH_HEADER_BYTES
        payload = memoryview(self._content)[begin : begin + header.num_bytes]
        if zlib.crc32(payload) != header.checksum:
            raise HeaderError("the checksum of the batch's commands is wrong")
        return Batch(header, _commands(payload, header.count))

    def _check(self, header: BatchHeader, offset: int, position: int) -> None:
        """Pass if a batch's header belongs where it is.

        Raises:
            HeaderError: if it doesn't.
        """
        rest = len(self._content) - offset - BATCH_HEADER_BYTES
        reason = ""
        if header.salt != self._header.salt:
            reason = "the batch is of another segment"
        elif header.first != position:
            reason = f"the batch begins at position {header.first}"
        elif header.term < self.term:
            reason = f"the batch is of term {header.term}, after one of {self.term}"
        elif header.synced >= header.first:
            reason = "the batch says that it was synced before it was written"
        elif header.num_bytes > rest or header.num_bytes % ALIGNMENT_BYTES:
            reason = f"the batch has {header.num_bytes} bytes, and {rest} follow"
        elif not 0 < 4 * header.count <= header.num_bytes:
            reason = f"the batch has {header.count} commands in {header.num_bytes} bytes"
        if reason:
            raise HeaderError(reason)


def end_of(content: bytes, header: SegmentHeader) -> End:
    """Return where a log ends whose last segment this is."""
    reader = SegmentReader(content, header)
    for _ in reader:
        pass
    synced = reader.synced
    if reader.stop.reason:
        synced = max(synced, _synced_behind(content, reader.stop, header))
    return End(reader.stop, synced, reader.term)


def _synced_behind(content: bytes, stop: Stop, header: SegmentHeader) -> int:
    """Return up to which position the log was synced, by what lies from a damaged place on.

    A batch whose header is whole was written after the sync that it names, whatever has become
    of its commands.

    Returns:
        The greatest synced position; 0 if no header follows.
    """
    synced, offset = 0, stop.offset - 1
    while (offset := content.find(BATCH_MAGIC, offset + 1)) >= 0:
        if offset % ALIGNMENT_BYTES:
            continue
        try:
            found = BatchHeader.at(content, offset)
        except HeaderError:
            continue
        if found.salt == header.salt:
            synced = max(synced, found.synced)
    return synced


def _is_blank(content: bytes, offset: int) -> bool:
    """Return whether nothing but zero bytes follow."""
    if offset >= len(content):
        return True
    if any(content[offset : offset + BATCH_HEADER_BYTES]):
        return False  # so that the rest isn't looked at for each batch
    return not np.frombuffer(content, np.uint8, offset=offset).any()


def _commands(payload: memoryview, count: int) -> list[memoryview]:
    """Return the commands of a batch.

    Raises:
        HeaderError: if their lengths don't add up to the batch's.
    """
    lengths = struct.unpack_from(f"<{count}I", payload)
    begins = [4 * count + padding(4 * count)]
    for length in lengths:
        begins.append(begins[-1] + length + padding(length))
    if begins[-1] != len(payload):
        raise HeaderError("the lengths of the commands don't add up to the batch's")
    ends = (begin + length for begin, length in zip(begins, lengths, strict=False))
    return [payload[begin:end] for (begin, _), end in zip(pairwise(begins), ends, strict=True)]
