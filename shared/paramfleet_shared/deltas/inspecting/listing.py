"""What a folder has of its stream: bases, changes, and former streams."""

from itertools import count
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import StreamHead
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import (
    MANIFEST,
    base_folder,
    change_file,
    change_number,
    is_identity,
)

__all__ = ["ListedStream", "Part", "list_stream"]


class Part(NamedTuple):
    """A base or a change of a stream."""

    kind: str
    """``base`` or ``change``."""
    number: int
    bytes: int
    """Of all its files."""
    problem: str
    """Why it can't be read at a first look; empty if it can."""


class ListedStream(NamedTuple):
    """A stream, and what else is in its folder."""

    head: StreamHead
    parts: list[Part]
    """By number, a change before the base of it."""
    former: list[str]
    """Other streams, which readers may be at."""


def list_stream(folder: Path) -> ListedStream:
    """Return the bases and changes that a folder keeps, by lengths; their content isn't read.

    Raises:
        StreamError: if there is no ``stream.json``, or it breaks a rule of the format.
        OSError: if the system refuses.
    """
    disk, head = StreamDisk(), StreamReader(folder).look()
    parts = [_base(folder, head, number, disk) for number in head.bases]
    oldest, names = min(head.bases), disk.names(folder / head.stream)
    found = {number for name in names if (number := change_number(name)) is not None}
    there = sorted(number for number in found if oldest < number <= head.last)
    paths = {number: change_file(folder, head.stream, number) for number in there}
    parts += [_part("change", number, [path]) for number, path in paths.items()]
    lacking = head.last - oldest - len(there)
    if lacking:
        first = next(number for number in count(oldest + 1) if number not in found)
        problem = f"change {first} is missing, {lacking} in all"
        parts.append(Part("change", first, 0, problem))
    parts.sort(key=lambda part: (part.number, part.kind != "change"))
    streams = [name for name in disk.names(folder) if is_identity(name)]
    return ListedStream(head, parts, [name for name in streams if name != head.stream])


def _base(folder: Path, head: StreamHead, number: int, disk: StreamDisk) -> Part:
    """Return a base.

    Raises:
        OSError: if the system refuses.
    """
    own = base_folder(folder, head.stream, number)
    files = [own / name for name in disk.names(own) if not name.startswith(".")]
    return _part("base", number, sorted({*files, own / MANIFEST}))


def _part(kind: str, number: int, files: list[Path]) -> Part:
    num_bytes, problem = 0, ""
    for path in files:
        try:
            num_bytes += path.lstat().st_size
        except OSError as error:
            problem = f"{path}: {error.strerror or error}"
    return Part(kind, number, num_bytes, problem)
