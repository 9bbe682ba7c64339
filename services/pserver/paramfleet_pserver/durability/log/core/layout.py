"""The bytes of a segment: its header, and the headers of the batches in it.

A segment, all numbers little-endian::

    magic "PFLOGSEG" | version u32 | length of the job's name u32
    number u64 | term u64 | first position u64 | published position u64 | salt u64
    job's name, UTF-8 | zero bytes | CRC-32 of all before it u32     512 bytes in all
    batches, each at a multiple of 8
    zero bytes up to the end of the file, which is preallocated

A batch::

    magic "PFLB" | CRC-32 of the 56 bytes behind it u32
    payload's length u64 | payload's CRC-32 u32 | number of commands u32
    term u64 | first position u64 | synced position u64 | salt u64 | 8 zero bytes
    payload: the length of each command u32 | the commands; each part is followed by zero
             bytes up to a multiple of 8

A *position* counts commands from 1. What is up to a batch's *synced position* was on the disk
before the batch was written; what is up to a segment's *published position* is in it, and was
on the disk before the segment got its name. All before a segment's first position was, too. The
*salt* is a random number of the segment: bytes inside a command can't pass for a header.
"""

import struct
import zlib
from dataclasses import dataclass

__all__ = [
    "ALIGNMENT_BYTES",
    "BATCH_HEADER_BYTES",
    "BATCH_MAGIC",
    "MAX_COMMAND_BYTES",
    "MAX_JOB_BYTES",
    "MAX_SEGMENT_BYTES",
    "SEGMENT_HEADER_BYTES",
    "BatchHeader",
    "HeaderError",
    "SegmentHeader",
    "padding",
]

ALIGNMENT_BYTES = 8
"""Where batches and commands start: the widest number of a command's tensors."""

SEGMENT_HEADER_BYTES = 512
BATCH_HEADER_BYTES = 64

MAX_JOB_BYTES = 255
"""Of a job's name."""

MAX_COMMAND_BYTES = 1 << 30
"""Of one command."""

MAX_SEGMENT_BYTES = 1 << 32
"""Of a file; a longer one isn't read."""

BATCH_MAGIC = b"PFLB"

_SEGMENT_MAGIC = b"PFLOGSEG"
_VERSION = 1
_SEGMENT = struct.Struct("<8sIIQQQQQ")
_CHECKSUM = struct.Struct("<I")
_BATCH = struct.Struct("<QIIQQQQ8x")
_BATCH_START = struct.Struct("<4sI")


class HeaderError(ValueError):
    """Bytes aren't a header; its text says why, as the end of a sentence."""


def padding(num_bytes: int) -> int:
    """Return how many zero bytes follow so many bytes."""
    return -num_bytes % ALIGNMENT_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentHeader:
    """What a segment says of itself."""

    job: str
    """Whose commands these are; at most ``MAX_JOB_BYTES``."""

    number: int
    """Segments are read in the order of their numbers."""

    term: int
    """Of its first batch."""

    first: int
    """Position of its first command."""

    published: int
    """Up to this position its commands were on the disk before it got its name."""

    salt: int
    """A random number that its batches repeat."""

    def to_bytes(self) -> bytes:
        """Return the header's ``SEGMENT_HEADER_BYTES``."""
        job = self.job.encode()
        assert len(job) <= MAX_JOB_BYTES, "the caller checks names"
        numbers = (self.number, self.term, self.first, self.published, self.salt)
        start = _SEGMENT.pack(_SEGMENT_MAGIC, _VERSION, len(job), *numbers) + job
        start = start.ljust(SEGMENT_HEADER_BYTES - _CHECKSUM.size, b"\0")
        return start + _CHECKSUM.pack(zlib.crc32(start))

    @classmethod
    def of(cls, content: bytes | memoryview) -> "SegmentHeader":
        """Read the header at the beginning of a segment.

        Raises:
            HeaderError: if there is none.
        """
        start = bytes(content[:SEGMENT_HEADER_BYTES])
        if len(start) < SEGMENT_HEADER_BYTES:
            message = f"it ends after {len(start)} bytes, within the segment's header"
            raise HeaderError(message)
        magic, version, length, *numbers = _SEGMENT.unpack_from(start)
        if magic != _SEGMENT_MAGIC:
            raise HeaderError("it doesn't begin as a segment")
        if version != _VERSION:
            message = f"its version is {version}, and this program knows {_VERSION}"
            raise HeaderError(message)
        covered = start[: -_CHECKSUM.size]
        if _CHECKSUM.pack(zlib.crc32(covered)) != start[-_CHECKSUM.size :]:
            raise HeaderError("the checksum of the segment's header is wrong")
        number, term, first, published, salt = numbers
        name = covered[_SEGMENT.size : _SEGMENT.size + length]
        try:
            job = name.decode()
        except UnicodeDecodeError as error:
            raise HeaderError("the job's name is no text") from error
        if length > MAX_JOB_BYTES or first < 1 or published < first - 1:
            raise HeaderError("the numbers of the segment's header contradict each other")
        return cls(
            job=job, number=number, term=term, first=first, published=published, salt=salt
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchHeader:
    """What a batch says of itself."""

    num_bytes: int
    """Of its payload."""

    checksum: int
    """CRC-32 of its payload."""

    count: int
    """Number of its commands, at least 1."""

    term: int
    first: int
    """Position of its first command."""

    synced: int
    """Up to this position the log was on the disk before this batch was written."""

    salt: int
    """That of its segment."""

    def to_bytes(self) -> bytes:
        """Return the header's ``BATCH_HEADER_BYTES``."""
        facts = (self.num_bytes, self.checksum, self.count, self.term, self.first)
        covered = _BATCH.pack(*facts, self.synced, self.salt)
        return _BATCH_START.pack(BATCH_MAGIC, zlib.crc32(covered)) + covered

    @classmethod
    def at(cls, content: bytes, offset: int) -> "BatchHeader":
        """Read the header at an offset.

        Raises:
            HeaderError: if there is none.
        """
        if len(content) - offset < BATCH_HEADER_BYTES:
            raise HeaderError("it ends within a batch's header")
        magic, checksum = _BATCH_START.unpack_from(content, offset)
        if magic != BATCH_MAGIC:
            raise HeaderError("no batch begins here")
        covered = content[offset + _BATCH_START.size : offset + BATCH_HEADER_BYTES]
        if zlib.crc32(covered) != checksum:
            raise HeaderError("the checksum of the batch's header is wrong")
        num_bytes, payload_checksum, count, term, first, synced, salt = _BATCH.unpack(covered)
        return cls(
            num_bytes=num_bytes,
            checksum=payload_checksum,
            count=count,
            term=term,
            first=first,
            synced=synced,
            salt=salt,
        )
