"""When it is looked which rows are to go, and that they go."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.sparse import SparseTable
from paramfleet.training.evicting.selecting import Selection, select
from paramfleet_shared.tables.rows.evicting import AsOf

__all__ = ["Looks", "RowKeeper"]

log = logging.getLogger(__name__)

MOST_AT_ONCE = 1 << 22
"""Rows of a table that are listed and removed before the rest is looked at: 64 MiB."""

COUNTS = 10
"""So often are rows counted between two looks, to see whether a table is full."""


class RowKeeper(Protocol):
    """What a mode offers of this."""

    def takes_turn(self, number: int) -> bool:
        """Return whether this worker looks, the ``number``-th time."""
        ...

    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        """Return the ids of rows that are to go: int64 [n]."""
        ...

    def num_rows(self, table: SparseTable) -> int:
        """Return how many rows a table has in the job."""
        ...

    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        """Remove rows of ids, int64 [n]; return how many there were."""
        ...


class Looks:
    """Removes rows of one optimizer's tables, as ``strategy.eviction_configs`` says.

    Args:
        tables: Returns them.
        keeper: Returns the mode that has the rows.
    """

    def __init__(
        self, tables: Callable[[], Sequence[SparseTable]], keeper: Callable[[], RowKeeper]
    ) -> None:
        self._tables = tables
        self._keeper = keeper
        self._due: list[SparseTable] = []
        """What the pass that has ended made due."""

    def shrink(self, table: SparseTable, *, dry_run: bool = False) -> int:
        """Remove rows of a table that have expired or are too many; return how many.

        Args:
            table: One whose rows have a value.
            dry_run: Only count them.

        Raises:
            FleetError: as ``fleet.shrink``.
        """
        gone = 0
        while True:
            num, ids = self._look(table, most=0 if dry_run else MOST_AT_ONCE)
            if dry_run:
                return num
            gone += self._keeper().remove(table, ids)
            if num <= MOST_AT_ONCE:
                return gone

    def after_step(self, num_steps: int) -> None:
        """Remove rows of tables that are looked at after a step.

        In sync all workers do at once; else they take turns. Whether a table is full is seen
        by its number of rows alone: so a worker that was started again does as the others.

        Args:
            num_steps: Steps that this worker has taken.
        """
        for table in self._tables():
            often = _often(table)
            if (
                often
                and not num_steps % often
                and self._keeper().takes_turn(num_steps // often)
            ):
                self._look_if_due(table, num_steps - 1, num_steps)

    def find_due(self, before: int, after: int) -> bool:
        """Return whether rows of some tables are to go behind a pass, and note of which.

        Args:
            before: Steps that had been taken when that was asked last.
            after: And those now.
        """
        self._due = [each for each in self._tables() if self._is_due(each, before, after)]
        return bool(self._due)

    def evict(self) -> None:
        """Remove rows of the tables that ``find_due`` found.

        Raises:
            FleetError: as ``fleet.shrink``.
        """
        due, self._due = self._due, []
        for table in due:
            self._evict(table)

    def _look_if_due(self, table: SparseTable, before: int, after: int) -> None:
        if self._is_due(table, before, after):
            self._evict(table)

    def _evict(self, table: SparseTable) -> None:
        gone = self.shrink(table)
        log.debug("table.evicted", extra={"table": table.name, "rows": gone})

    def _is_due(self, table: SparseTable, before: int, after: int) -> bool:
        """Return whether steps have made a look due, or the table is full at a count."""
        often, most = _often(table), table.kept_as.entry.max_rows
        if not often or after // often == before // often:
            return False
        every = table.eviction.every_steps
        if after // every != before // every:
            return True
        return table.eviction.is_full(self._keeper().num_rows(table), max_rows=most)

    def _look(self, table: SparseTable, *, most: int) -> tuple[int, NDArray[np.int64]]:
        """Return how many rows are to go, and the first ones of them.

        Args:
            table: As of ``shrink``.
            most: How many are returned at most.
        """
        eviction, max_rows = table.eviction, table.kept_as.entry.max_rows
        found = 0

        def choose(num_rows: int, num_expired: int) -> int:
            nonlocal found
            found = eviction.num_to_evict(num_rows, num_expired, max_rows=max_rows)
            return min(found, most)

        unseen = eviction.unseen_hours or eviction.unseen_steps
        as_of = AsOf(table.now, max(0, table.now - unseen) if unseen else 0)
        ids = self._keeper().evictable(table, as_of, select(choose))
        return found, ids


def _often(table: SparseTable) -> int:
    """Return after how many steps rows of a table are counted, or looked at; 0 for never."""
    eviction = table.eviction
    if not eviction.is_on or not eviction.every_steps:
        return 0
    if not table.kept_as.entry.max_rows:
        return eviction.every_steps
    return max(1, eviction.every_steps // COUNTS)
