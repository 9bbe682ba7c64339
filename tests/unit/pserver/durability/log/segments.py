"""Small segments as bytes, for tests of the log."""

from collections.abc import Sequence
from dataclasses import dataclass

from paramfleet_pserver.durability.log.core.batching import CommandQueue
from paramfleet_pserver.durability.log.core.layout import SegmentHeader
from paramfleet_pserver.durability.log.core.reading import SegmentReader, Stop

SALT = 0x1122334455667788


def segment(
    groups: Sequence[Sequence[bytes]],
    *,
    synced: Sequence[int],
    published: int = 0,
    blank: int = 40,
    first: int = 1,
) -> bytes:
    """Return a segment with a batch of each group of commands, and zero bytes behind."""
    header = SegmentHeader(
        job="job", number=1, term=3, first=first, published=max(published, first - 1), salt=SALT
    )
    content = header.to_bytes()
    queue = CommandQueue(position=first - 1, batch_bytes=1 << 20)
    for group, position in zip(groups, synced, strict=True):
        for command in group:
            queue.append(3, (command,))
        for batch in queue.take():
            content += b"".join(batch.written(header, synced=position))
    return content + bytes(blank)


@dataclass
class Read:
    commands: list[bytes]
    stop: Stop
    synced: int


def read(content: bytes) -> Read:
    """Return all that a segment's bytes hold."""
    reader = SegmentReader(content, SegmentHeader.of(content))
    commands = [bytes(command) for batch in reader for command in batch.commands]
    return Read(commands, reader.stop, reader.synced)
