"""A new base made of the newest one and the changes behind it, file to file."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paramfleet_shared.deltas.base_writing import BasePlace, temporary_near, write_base
from paramfleet_shared.deltas.errors import StreamError, StreamReplacedError
from paramfleet_shared.deltas.merging.folding import fold
from paramfleet_shared.deltas.publishing import change_head
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamHead
from paramfleet_shared.deltas.retention import kept_bases, remove_base, remove_unkept
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import BASES_LOCK, HEAD, base_folder
from paramfleet_shared.system.clock import Clock

__all__ = ["compact_folder", "merge_base", "prune_folder", "with_base"]


def merge_base(folder: Path, head: StreamHead, disk: StreamDisk) -> str:
    """Write the base of the newest change; return the SHA-256 of its manifest.

    Rows stay in mapped files, and are merged a piece at a time. The caller has the lock of
    bases. Who does it twice writes the same bytes.

    Args:
        folder: Of the stream.
        head: What ``stream.json`` says.
        disk: What writes.

    Raises:
        StreamReplacedError: if the folder has another stream meanwhile.
        FleetError: as ``StreamReader.base`` and ``StreamReader.changes``.
        OSError: if the system refuses.
    """
    reader = StreamReader(folder)
    base = reader.base(head.base)
    if base.stream != head.stream:
        raise StreamReplacedError(path=str(folder), stream=head.stream, found=base.stream)
    ends = [(base.moment, base.digest)]

    def mapped() -> Iterator[Change]:
        found = reader.stored_changes(head.base, head.last, are_mapped=True)
        for _, stored, sha256 in found:
            ends[:] = [(stored.change.moment, sha256)]
            yield stored.change

    folded = fold(base, mapped(), temporary_near(folder))
    tables = [(base.tables[name].table, runs) for name, runs in folded.tables.items()]
    place = BasePlace(head.stream, head.last, *ends[0])
    try:
        return write_base(folder, place, tables, folded.dense, disk)
    except BaseException:
        with suppress(OSError):  # as where the disk is full
            remove_base(base_folder(folder, head.stream, head.last), disk)
        raise


def with_base(head: StreamHead, number: int, sha256: str, keep: int) -> StreamHead:
    """Return a head that lists a base, too, and the newest ones alone.

    Args:
        head: What ``stream.json`` says.
        number: Of the base.
        sha256: Of its manifest.
        keep: How many bases are listed.
    """
    return replace(head, bases=kept_bases({**head.bases, number: sha256}, keep))


def compact_folder(folder: Path, clock: Clock, *, keep: int | None = None) -> int | None:
    """Make a base of what is published, beside the writer of the stream or without one.

    At an address no writer may publish meanwhile: there is no lock.

    Args:
        folder: Of the stream.
        clock: The time that waits are bounded by.
        keep: How many bases are kept; as many as there were, and this one, if not given.

    Returns:
        Its number; None if the newest change has a base.

    Raises:
        FleetError: as ``StreamReader``, or if the folder has another stream meanwhile.
        OSError: if the system refuses.
    """
    disk = StreamDisk()
    with disk.locked(folder / BASES_LOCK, clock):
        head = StreamReader(folder).look()
        if head.base == head.last:
            return None
        sha256 = merge_base(folder, head, disk)

        def decide(found: StreamHead | None) -> StreamHead:
            now = _same_stream(folder, head, found)
            most = len(now.bases) + 1 if keep is None else keep
            return with_base(now, head.last, sha256, most)

        _retain(folder, disk, clock, decide)
        return head.last


def prune_folder(folder: Path, clock: Clock, *, keep: int) -> StreamHead:
    """Keep the newest bases and the changes behind the oldest of them; remove the others.

    Args:
        folder: Of the stream.
        clock: The time that waits are bounded by.
        keep: How many bases are kept; at least 1.

    Raises:
        FleetError: as ``StreamReader``, or if the folder has another stream meanwhile.
        OSError: if the system refuses.
    """
    disk = StreamDisk()
    head = StreamReader(folder).look()

    def decide(found: StreamHead | None) -> StreamHead:
        now = _same_stream(folder, head, found)
        return replace(now, bases=kept_bases(now.bases, keep))

    with disk.locked(folder / BASES_LOCK, clock):
        return _retain(folder, disk, clock, decide)


def _retain(
    folder: Path,
    disk: StreamDisk,
    clock: Clock,
    decide: Callable[[StreamHead | None], StreamHead],
) -> StreamHead:
    """Change ``stream.json``, and remove what it doesn't need.

    Raises:
        FleetError: as ``change_head``.
        OSError: if the system refuses.
    """
    head = change_head(folder, disk, clock, decide)
    remove_unkept(folder, head, disk)
    return head


def _same_stream(folder: Path, head: StreamHead, found: StreamHead | None) -> StreamHead:
    """Return what ``stream.json`` says if it is the same stream still.

    Raises:
        StreamError: if there is none any more.
        StreamReplacedError: if it is another one.
    """
    if found is None:
        raise StreamError(path=str(folder / HEAD), rule="was removed meanwhile")
    if found.stream != head.stream:
        raise StreamReplacedError(path=str(folder), stream=head.stream, found=found.stream)
    return found
