"""A batch of ids as it travels: each id once, sorted by shard, and the way back.

Every pserver hosts neighbouring shards, so that its part of a pull or a push is a
slice: nothing is gathered or scattered on the way out or in.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels import partition as kernels
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.memory.shapes import check_array

__all__ = ["Partitioned", "are_in_shards", "partition"]

# n = ids of a batch, u = different ones


class Partitioned(NamedTuple):
    """The different ids of a batch, sorted by shard; in a shard as ``partition`` was asked."""

    ids: NDArray[np.int64]
    """[u]"""
    inverse: NDArray[np.int64]
    """[n]: ``batch == ids[inverse]``."""
    offsets: NDArray[np.int64]
    """[num_shards + 1]: shard ``s`` has ``ids[offsets[s] : offsets[s + 1]]``."""


def partition(ids: NDArray[np.int64], num_shards: int, *, by_id: bool = False) -> Partitioned:
    """Take the duplicates out of a batch and sort it by shard, in one pass without the GIL.

    Args:
        ids: int64 [n], fewer than 2**31; left as they are.
        num_shards: From 1 to 65,536. An id's shard depends on the id and this alone.
        by_id: Whether ids are sorted, as if unsigned, inside their shard, so that they
            pack well; else they stand by first appearance.

    Raises:
        RowShapeError: if ``ids`` are not int64 [n].
    """
    check_array(ids, np.int64, (-1,), table="")
    keys = as_input(ids, np.int64).view(np.uint64)
    different = np.empty(keys.size, np.uint64)
    inverse = np.empty(keys.size, np.int64)
    offsets = np.empty(num_shards + 1, np.int64)
    num = kernels.partition_ids(keys, different, inverse, offsets, by_id)
    return Partitioned(different[:num].view(np.int64), inverse, offsets)


def are_in_shards(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], *, first: int, num_shards: int
) -> bool:
    """Return whether each id of a batch lies in the shard that it belongs to.

    Args:
        ids: int64 [n].
        offsets: int64 [shards + 1], ``encoding.are_bounds`` of n: the bounds of neighbouring
            shards in ``ids``.
        first: The number of the first of them.
        num_shards: From 1 to 65,536. An id's shard depends on the id and this alone.
    """
    keys = as_input(ids, np.int64).view(np.uint64)
    bounds = as_input(offsets, np.int64)
    return bool(kernels.are_in_shards(keys, bounds, first, num_shards))
