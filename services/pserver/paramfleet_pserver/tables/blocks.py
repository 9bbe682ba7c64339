"""The rows of a sparse table, by the owners of its shards."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Block", "NewShard", "in_memory", "make_blocks"]


NewShard = Callable[[TableSpec, Callable[[str, int], None], int], SparseShard]
"""Makes the shard of a table, given what refuses bytes that there is no memory for, and the
shard's owner."""


def in_memory(spec: TableSpec, check_memory: Callable[[str, int], None], _: int) -> SparseShard:
    """Return a shard whose rows are all in memory."""
    return SparseShard(spec, check_memory=check_memory)


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
        new_shard: Makes the rows of a block.
    """
    check = partial(check_memory, spec.name)
    return tuple(
        Block(owner, own, new_shard(spec, check, owner)) for owner, own in enumerate(shards)
    )
