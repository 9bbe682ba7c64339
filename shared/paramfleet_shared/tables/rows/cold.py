"""What a shard has on disk, and what it has done there."""

from dataclasses import dataclass

__all__ = ["ColdRows"]


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
    file_bytes: int = 0
    memory_bytes: int = 0
    """What is in memory of what is on disk: the keys of rows that were written lately."""
    engine: str = ""
    """How pages are read: ``ring`` or ``threads``; empty where all rows are in memory."""
