"""What a shard has on disk, and what it has done there."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ColdRows", "Fetch"]


class Fetch(NamedTuple):
    """What became of ids whose rows are to be in memory before they are needed."""

    taken: int
    """How many of them, from the first on, were looked at; the others are still to be."""
    brought: int = 0
    """Rows that were read from disk."""
    left: int = 0
    """Ids that weren't in memory, and that weren't looked for: no more rows may wait there."""


@dataclass(slots=True)
class ColdRows:
    """Counts of one shard, since it is there. Its owner's thread changes them; any reads."""

    rows: int = 0
    """That aren't in memory."""
    wanted: int = 0
    """How often an id was asked for that wasn't in memory."""
    read: int = 0
    """How often it was on disk."""
    written: int = 0
    """Rows that left memory, and had changed."""
    dropped: int = 0
    """Rows that left memory, and hadn't."""
    full: int = 0
    """How often the disk had no room for more: the rows stayed in memory."""
    prefetched: int = 0
    """Rows that were read before they were needed; ``read`` has them, too."""
    prefetched_used: int = 0
    """Those of them that were used before they left memory."""
    file_bytes: int = 0
    memory_bytes: int = 0
    """What is in memory of what is on disk: the keys of rows that were written lately."""
    engine: str = ""
    """How pages are read: ``ring`` or ``threads``; empty where all rows are in memory."""
