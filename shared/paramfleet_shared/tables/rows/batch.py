"""Rows of a table as they travel: sorted by shard, so that a pserver's part is a slice."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import are_sorted_within_shards, sort_within_shards

__all__ = ["MARK_GROWN", "MOST_USES", "RowBatch", "RowIds"]

MARK_GROWN = 255
"""What a GEO worker says of a row, uint8: its copy has its embedx. 0 says that it has none, and
up to ``MOST_USES`` in how many steps an id came that has no row there."""

MOST_USES = MARK_GROWN - 1


class RowIds(NamedTuple):
    """Which rows."""

    ids: NDArray[np.int64]
    """Sorted by shard. [n]"""
    offsets: NDArray[np.int64]
    """Bounds of the shards in ``ids``: of all, or of those of one server. [shards + 1]"""

    def within(self, shards: range) -> slice:
        """Return where the rows of neighbouring shards lie."""
        return slice(int(self.offsets[shards.start]), int(self.offsets[shards.stop]))

    def of(self, shards: range) -> tuple[slice, NDArray[np.int64]]:
        """Return where the rows of neighbouring shards lie, and their bounds within that."""
        bounds = self.offsets[shards.start : shards.stop + 1]
        return slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0]

    def sorted(self) -> tuple["RowIds", NDArray[np.int64] | None]:
        """Return the rows sorted by id inside each shard, and where each of them stood.

        Of rows that are sorted already, themselves and None.
        """
        if are_sorted_within_shards(self.ids, self.offsets):
            return self, None
        order = sort_within_shards(self.ids, self.offsets)
        return RowIds(self.ids[order], self.offsets), order


class RowBatch(NamedTuple):
    """Numbers of rows, such as their gradients, each id once."""

    ids: NDArray[np.int64]
    """Sorted by shard. [n]"""
    values: NDArray[np.float32]
    """[n, D]"""
    offsets: NDArray[np.int64]
    """Bounds of the shards in ``ids``. [shards + 1]"""

    @property
    def rows(self) -> RowIds:
        """Return which rows they are of."""
        return RowIds(self.ids, self.offsets)
