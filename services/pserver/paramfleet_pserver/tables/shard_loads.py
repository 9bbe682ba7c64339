"""How much each shard of a table is used: its rows, and those that are read and changed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.sparse import SparseShard

__all__ = ["COUNTED_ROWS", "RowCounter", "ShardUse", "busiest"]

COUNTED_ROWS = 1 << 18
"""New rows that are counted at a time: some milliseconds, in which their owner does nothing
else."""

TOP_SHARDS = 5
"""Shards of a table that a server names."""


class ShardUse:
    """How many rows of each shard were read and changed. Used from one event loop.

    Args:
        num_shards: Shards of one table on this server.
    """

    def __init__(self, num_shards: int) -> None:
        self._pulled = np.zeros(num_shards + 1, np.int64)
        self._pushed = np.zeros(num_shards + 1, np.int64)

    @property
    def pulled(self) -> NDArray[np.int64]:
        """Return how many rows of each shard were read, int64 [shards]."""
        return np.diff(self._pulled)

    @property
    def pushed(self) -> NDArray[np.int64]:
        """Return how many rows of each shard were changed, int64 [shards]."""
        return np.diff(self._pushed)

    def pull(self, offsets: NDArray[np.int64]) -> None:
        """Count rows that are read.

        Args:
            offsets: Their bounds by shard. [shards + 1]
        """
        self._pulled += offsets  # sums of bounds are bounds of the sums

    def push(self, offsets: NDArray[np.int64]) -> None:
        """Count rows that are changed, as ``pull`` does."""
        self._pushed += offsets


class RowCounter:
    """Counts the rows of neighbouring shards, each once, after it was made.

    Once rows were removed, all are counted anew.

    Their owner counts; anybody may read.

    Args:
        shards: The shards, by the numbers they have in the job.
        num_shards: Shards of every table of the job.
    """

    def __init__(self, shards: range, num_shards: int) -> None:
        self._shards = shards
        self._num_shards = num_shards
        self.rows = np.zeros(len(shards), np.int64)
        """Rows of each shard. [shards]"""
        self._num_counted = 0
        """Places of rows that were looked at."""
        self._num_turns = 0

    def num_left(self, rows: SparseShard) -> int:
        """Return in how many places of rows there may be some to count.

        Rows without places are spread over the shards by a hash: as many in each, about.
        """
        if not rows.has_places:
            num, rest = divmod(rows.num_rows, len(self.rows))
            self.rows[:] = num
            self.rows[:rest] += 1
            return 0
        if rows.num_turns != self._num_turns:
            return rows.num_slots
        return rows.num_slots - self._num_counted

    def count(self, rows: SparseShard) -> None:
        """Count those in places that weren't looked at, ``COUNTED_ROWS`` at most."""
        if rows.num_turns != self._num_turns:
            self._num_turns = rows.num_turns
            self._num_counted = 0
            self.rows[:] = 0
        stop = self._num_counted + COUNTED_ROWS
        ids = rows.live_ids(self._num_counted, stop - self._num_counted)
        offsets = route(ids, self._num_shards).offsets
        first, last = self._shards.start, self._shards.stop
        self.rows += np.diff(offsets[first : last + 1])
        self._num_counted = min(stop, rows.num_slots)


def busiest(
    first: int,
    rows: NDArray[np.int64],
    num_bytes: Sequence[int] | NDArray[np.int64],
    use: ShardUse,
) -> list[dict[str, Any]]:
    """Return the most used shards of a table, by rows read and changed, then by rows.

    Args:
        first: The number that the first shard has in the job.
        rows: Of each shard.
        num_bytes: Of each shard.
        use: Of each shard.
    """
    pulled, pushed = use.pulled, use.pushed
    order = np.lexsort((-rows, -(pulled + pushed)))[:TOP_SHARDS]
    return [
        {
            "shard": first + int(shard),
            "rows": int(rows[shard]),
            "bytes": int(num_bytes[shard]),
            "pulled": int(pulled[shard]),
            "pushed": int(pushed[shard]),
        }
        for shard in order
    ]
