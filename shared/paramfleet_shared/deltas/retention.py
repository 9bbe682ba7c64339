"""What of a stream's folder is removed, and when."""

from collections.abc import Mapping
from pathlib import Path

from paramfleet_shared.deltas.records import StreamHead
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import (
    HEAD,
    MANIFEST,
    base_number,
    change_number,
    is_identity,
    read_head,
)
from paramfleet_shared.files.addresses import Address

__all__ = [
    "kept_bases",
    "remove_base",
    "remove_drafts",
    "remove_former",
    "remove_stream",
    "remove_unkept",
    "remove_unnamed",
]


def kept_bases(bases: Mapping[int, str], keep: int) -> dict[int, str]:
    """Return the newest bases, oldest first.

    Args:
        bases: All of them.
        keep: How many are kept; at least 1.
    """
    return {number: bases[number] for number in sorted(bases)[-keep:]}


def remove_unkept(folder: Path, head: StreamHead, disk: StreamDisk) -> None:
    """Remove bases that ``stream.json`` doesn't list, and changes that no base needs.

    The caller has the lock of bases: nobody writes one.

    Args:
        folder: Of the stream.
        head: What ``stream.json`` says.
        disk: What removes.

    Raises:
        OSError: if the system refuses.
    """
    own, oldest = folder / head.stream, min(head.bases)
    for name in disk.names(own):
        base, change = base_number(name), change_number(name)
        if base is not None and base not in head.bases:
            remove_base(own / name, disk)
        elif change is not None and change <= oldest:
            disk.remove(own / name)


def remove_base(base: Path, disk: StreamDisk) -> None:
    """Remove a base, its manifest first.

    Raises:
        OSError: if the system refuses.
    """
    names = disk.names(base)
    for name in sorted(names, key=lambda name: name != MANIFEST):
        if name == MANIFEST or name.endswith(".safetensors") or _is_draft(name):
            disk.remove(base / name)
    disk.remove_folder(base)


def remove_former(folder: Path, kept: set[str], disk: StreamDisk) -> None:
    """Remove all streams of a folder but those that are named.

    Args:
        folder: Of the streams.
        kept: Names of streams.
        disk: What removes.

    Raises:
        OSError: if the system refuses.
    """
    for name in disk.names(folder):
        if is_identity(name) and name not in kept:
            remove_stream(folder / name, disk)


def remove_stream(own: Path, disk: StreamDisk) -> None:
    """Remove a stream's folder: what has names of ours, and the folder if that is all.

    Raises:
        OSError: if the system refuses.
    """
    for name in disk.names(own):
        if base_number(name) is not None:
            remove_base(own / name, disk)
        elif change_number(name) is not None or _is_draft(name):
            disk.remove(own / name)
    disk.remove_folder(own)


def remove_unnamed(folder: Path, stream: str, disk: StreamDisk, *, is_refused: bool) -> None:
    """Remove a stream that was to be begun, unless ``stream.json`` may name it.

    Args:
        folder: Of the streams.
        stream: Which one.
        disk: What removes.
        is_refused: Whether ``stream.json`` wasn't replaced for certain. At an address a put
            that has failed may be done later.

    Raises:
        StreamError: if ``stream.json`` can't be read.
        StreamUnreadableError: if the system refuses it.
        OSError: if the system refuses.
    """
    if not is_refused:
        if isinstance(folder, Address):
            return
        head = read_head(folder)
        if head is not None and head.stream == stream:
            return
    remove_stream(folder / stream, disk)


def remove_drafts(folder: Path, disk: StreamDisk) -> None:
    """Remove what writers of ``stream.json`` left that ended in the middle of it.

    Raises:
        OSError: if the system refuses.
    """
    for name in disk.names(folder):
        if _is_draft(name) and name.startswith(f".{HEAD}."):
            disk.remove(folder / name)


def _is_draft(name: str) -> bool:
    return name.startswith(".") and name.endswith(".partial")
