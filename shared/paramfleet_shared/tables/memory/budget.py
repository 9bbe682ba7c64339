"""How many rows of each shard may be in memory, where a tier on disk has the others.

The shards of several tables share one budget, by what they would take if all their rows were in
memory: a table that grows gets more of it. Others that the same thread uses give it up when it
has grown by a part of the budget, and those of other threads at their next call.
"""

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MemoryBudget", "Share"]

_ASKS_PER_BUDGET = 64
"""Others are asked to give memory up when a shard has grown by a part of one in so many."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """What one shard has of a budget. Its owner's thread changes it; any thread reads."""

    row_bytes: int
    """What a row takes in memory, its part of the index included."""
    num_rows: int = 0
    """Rows of the shard, those on disk among them."""
    owner: object = None
    """Who uses it: shards of the same one are used by one thread. None for another than any."""
    give_up: "weakref.WeakMethod[Callable[[], None]] | None" = None
    """Has rows leave memory, as many as are too many. Called by its owner's thread."""
    asked_at: int = 0
    """What it wanted when the others of its owner were asked to give memory up."""

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
        self.is_exceeded = False
        """Whether rows have stayed in memory beyond it, as the disk was full."""
        self._shares = weakref.WeakSet[Share]()
        self._changing = threading.Lock()

    def share(self, row_bytes: int) -> Share:
        """Return the share of a new shard, which lasts as long as somebody has it."""
        share = Share(row_bytes)
        with self._changing:
            self._shares.add(share)
            self.num_changes += 1
        return share

    def ask_others(self, share: Share) -> None:
        """Have other shards of the same owner give memory up, if one has grown by much.

        They aren't called by anybody else, perhaps: a restore fills table after table. To be
        called by the owner's thread, while none of its shards is in a call.

        Raises:
            FleetError: as theirs.
        """
        share.asked_at = min(share.asked_at, share.wanted_bytes)  # rows may have been removed
        if share.wanted_bytes - share.asked_at < self.num_bytes // _ASKS_PER_BUDGET:
            return
        share.asked_at = share.wanted_bytes
        with self._changing:
            wanted = sum(each.wanted_bytes for each in self._shares)
            others = [
                each
                for each in self._shares
                if each is not share and each.owner is share.owner is not None
            ]
        if wanted > self.num_bytes:
            for other in others:
                give_up = None if other.give_up is None else other.give_up()
                if give_up is not None:
                    give_up()

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
