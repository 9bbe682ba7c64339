"""The rows of a sparse table, by the owners of its shards."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Block", "make_blocks"]


class Block(NamedTuple):
    """Neighbouring shards with one owner, and their rows in one place.

    A request is sorted by shard, so that a block's part of it is one slice and one call.
    """

    owner: int
    shards: range
    """Counted from this server's first."""
    rows: SparseShard


def make_blocks(
    spec: TableSpec,
    shards: Sequence[range],
    check_memory: Callable[[str, str, int], None],
) -> tuple[Block, ...]:
    """Return blocks without rows, one for each owner.

    Args:
        spec: The table.
        shards: Of each owner, counted from this server's first.
        check_memory: Refuses a table's bytes that there is no memory for.
    """
    check = partial(check_memory, spec.name)
    return tuple(
        Block(owner, own, SparseShard(spec, check_memory=check))
        for owner, own in enumerate(shards)
    )
