"""Commands that wait for the disk: appended one by one, taken from there as batches.

Two threads use a queue without a lock: one appends, the other takes and releases. Each number
is written by one of them only.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paramfleet_pserver.durability.log.core.layout import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    SegmentHeader,
    padding,
)

__all__ = ["Buffer", "CommandQueue", "WaitingBatch", "gathered"]

Buffer = bytes | bytearray | memoryview
"""A part of a command; it must not change before the command is durable."""

MAX_COMMANDS = 1 << 16
"""Of a batch."""

_SHORT_BYTES = 4096
"""Parts below this are copied into one buffer: cheaper than to write one more."""


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """A batch that isn't known to be on the disk."""

    term: int
    first: int
    """Position of its first command."""
    count: int
    parts: list[Buffer]
    """Its payload."""
    num_bytes: int
    """Of the payload."""
    checksum: int
    """CRC-32 of the payload."""
    command_bytes: int
    """Of the commands alone."""

    @property
    def last(self) -> int:
        """Return the position of its last command."""
        return self.first + self.count - 1

    @property
    def size(self) -> int:
        """Return its bytes in a file."""
        return BATCH_HEADER_BYTES + self.num_bytes

    def written(self, segment: SegmentHeader, *, synced: int) -> list[Buffer]:
        """Return its bytes in a segment.

        Args:
            segment: The segment's header.
            synced: The durable position.
        """
        header = BatchHeader(
            num_bytes=self.num_bytes,
            checksum=self.checksum,
            count=self.count,
            term=self.term,
            first=self.first,
            synced=synced,
            salt=segment.salt,
        )
        return [header.to_bytes(), *self.parts]


class _Command(NamedTuple):
    term: int
    parts: Sequence[Buffer]
    num_bytes: int


class CommandQueue:
    """Commands from when they are appended until they are durable.

    Args:
        position: Of the last command before them.
        batch_bytes: A batch takes no more commands once it has so many bytes.
    """

    def __init__(self, *, position: int, batch_bytes: int) -> None:
        self.position = position
        """Of the last command appended."""
        self._taken = position
        self._batch_bytes = batch_bytes
        self._commands: deque[_Command] = deque()
        self._appended_bytes = 0
        self._durable_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of commands that aren't durable."""
        return self._appended_bytes - self._durable_bytes

    def append(self, term: int, parts: Sequence[Buffer]) -> int:
        """Add a command, and return its position."""
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        self._commands.append(_Command(term, parts, num_bytes))
        self._appended_bytes += num_bytes
        self.position += 1
        return self.position

    def take(self) -> Iterator[WaitingBatch]:
        """Yield what was appended as batches; each is of one term."""
        group: list[_Command] = []
        size, left = 0, len(self._commands)  # what comes meanwhile is for the next time
        for _ in range(left):
            command = self._commands.popleft()
            is_full = size + command.num_bytes > self._batch_bytes or len(group) >= MAX_COMMANDS
            if group and (is_full or command.term != group[0].term):
                yield self._batch(group)
                group, size = [], 0
            group.append(command)
            size += command.num_bytes
        if group:
            yield self._batch(group)

    def release(self, batch: WaitingBatch) -> None:
        """Forget a batch that is durable."""
        self._durable_bytes += batch.command_bytes

    def _batch(self, group: Sequence[_Command]) -> WaitingBatch:
        lengths = struct.pack(f"<{len(group)}I", *(command.num_bytes for command in group))
        parts: list[Buffer] = [lengths, bytes(padding(len(lengths)))]
        for command in group:
            parts += [*command.parts, bytes(padding(command.num_bytes))]
        parts = gathered(parts)
        checksum, num_bytes = 0, 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
            num_bytes += memoryview(part).nbytes
        first = self._taken + 1
        self._taken += len(group)
        command_bytes = sum(command.num_bytes for command in group)
        return WaitingBatch(
            group[0].term, first, len(group), parts, num_bytes, checksum, command_bytes
        )


def gathered(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the same bytes in fewer parts: short ones that follow each other are joined."""
    long: list[Buffer] = []
    short: list[Buffer] = []
    for part in parts:
        if memoryview(part).nbytes < _SHORT_BYTES:
            short.append(part)
            continue
        if short:
            long.append(b"".join(short))
            short = []
        long.append(part)
    if short:
        long.append(b"".join(short))
    return long
