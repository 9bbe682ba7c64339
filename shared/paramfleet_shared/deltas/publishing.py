"""``stream.json`` changed: the commit point of everything that a stream publishes."""

from collections.abc import Callable
from pathlib import Path

from paramfleet_shared.deltas.errors import StreamError
from paramfleet_shared.deltas.records import StreamHead
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import (
    HEAD,
    LOCK,
    MAX_HEAD_BYTES,
    head_bytes,
    read_head,
)
from paramfleet_shared.system.clock import Clock

__all__ = ["change_head"]


def change_head(
    folder: Path,
    disk: StreamDisk,
    clock: Clock,
    decide: Callable[[StreamHead | None], StreamHead],
) -> StreamHead:
    """Replace ``stream.json`` by what follows from what it says now; return that.

    On a disk nobody else changes it meanwhile. At an address another process may, between the
    look and the put: the later one's put stays.

    Args:
        folder: Of the stream.
        disk: What writes it.
        clock: The time that the wait for other processes is bounded by.
        decide: Given what the file says, None if there is none; raises if it may not change.

    Raises:
        StreamBusyError: if another process holds the lock for long.
        StreamError: if what is there can't be read, or has too many bases.
        OSError: if the system refuses; the file may be replaced or not.
    """
    with disk.locked(folder / LOCK, clock):
        head = decide(read_head(folder))
        content = head_bytes(head)
        if len(content) > MAX_HEAD_BYTES:
            rule = f"has no room for {len(head.bases)} bases: keep fewer"
            raise StreamError(path=str(folder / HEAD), rule=rule)
        with disk.creating(folder / HEAD) as file:
            file.write(content)
    return head
