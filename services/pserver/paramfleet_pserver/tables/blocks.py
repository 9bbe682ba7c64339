"""The rows of a sparse table, by the owners of its shards."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Block", "NewShard", "in_memory", "make_blocks"]


def _pass(_: object) -> None:
    """Have nothing to say."""


class NewShard(NamedTuple):
    """Where the rows of sparse tables are."""

    make: Callable[[TableSpec, Callable[[str, int], None], int], SparseShard]
    """Makes the shard of a table, given what refuses bytes that there is no memory for, and the
    shard's owner."""
    check: Callable[[TableSpec], None] = _pass
    """Refuses a table whose rows can't be there, before it has any."""
    note_tables: Callable[[Collection[str]], None] = _pass
    """Is told which sparse tables there are, once a worker has declared those of its job."""


def _in_memory(spec: TableSpec, check: Callable[[str, int], None], _: int) -> SparseShard:
    return SparseShard(spec, check_memory=check)


in_memory = NewShard(_in_memory)
"""All rows are in memory."""


class Block(NamedTuple):
    """Neighbouring shards with one owner, and their rows in one place.

    A request is sorted by shard, so that a block's part of it is one slice and one call.
    """

    owner: int
    shards: range
    """Counted from this server's first."""
    rows: SparseShard

    def work(self, num_rows: int) -> int:
        """Return how many rows in memory cost as much as so many of these."""
        return num_rows * self.rows.work_factor

    def ahead(self, ids: NDArray[np.int64]) -> Callable[[], bool] | None:
        """Return what begins to read rows of ids, int64 [n]; None if none is on a disk."""
        return partial(self.rows.read_ahead, ids) if self.rows.cold.rows else None


def make_blocks(
    spec: TableSpec,
    shards: Sequence[range],
    check_memory: Callable[[str, str, int], None],
    new_shard: NewShard = in_memory,
) -> tuple[Block, ...]:
    """Return blocks without rows, one for each owner.

    Args:
        spec: The table.
        shards: Of each owner, counted from this server's first.
        check_memory: Refuses a table's bytes that there is no memory for.
        new_shard: Where the rows are.
    """
    check = partial(check_memory, spec.name)
    return tuple(
        Block(owner, own, new_shard.make(spec, check, owner))
        for owner, own in enumerate(shards)
    )
