"""How many rows of each shard may be in memory, where a tier on disk has the others.

The shards of several tables share one budget, by what they would take if all their rows were in
memory: a table that grows gets more of it, and others give it up at their next turn.
"""

import threading
import weakref
from dataclasses import dataclass

__all__ = ["MemoryBudget", "Share"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """What one shard has of a budget. Its owner's thread changes it; any thread reads."""

    row_bytes: int
    """What a row takes in memory, its part of the index included."""
    num_rows: int = 0
    """Rows of the shard, those on disk among them."""

    @property
    def wanted_bytes(self) -> int:
        """Return the memory that all rows would take."""
        return self.row_bytes * self.num_rows


class MemoryBudget:
    """Memory for the rows of some shards.

    Args:
        num_bytes: In all.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.num_changes = 0
        """How often a share has changed. While it is the same, so is what ``rows_of`` returns,
        except that a share which is gone leaves more to the others."""
        self._shares = weakref.WeakSet[Share]()
        self._changing = threading.Lock()

    def share(self, row_bytes: int) -> Share:
        """Return the share of a new shard, which lasts as long as somebody has it."""
        share = Share(row_bytes)
        with self._changing:
            self._shares.add(share)
            self.num_changes += 1
        return share

    def note(self, share: Share, num_rows: int) -> None:
        """Note how many rows a shard has, those on disk among them."""
        with self._changing:
            share.num_rows = num_rows
            self.num_changes += 1

    def rows_of(self, share: Share) -> int:
        """Return how many rows of a shard may be in memory."""
        with self._changing:
            wanted = sum(each.wanted_bytes for each in self._shares)
        if wanted <= self.num_bytes:
            return (self.num_bytes - wanted) // share.row_bytes + share.num_rows
        return int(self.num_bytes * (share.wanted_bytes / wanted)) // share.row_bytes
