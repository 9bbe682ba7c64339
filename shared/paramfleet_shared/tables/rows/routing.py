"""Batches on their way to tables: duplicates, shards, and sums of gradients.

All of it runs without the GIL and leaves its arguments as they are.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.batches import (
    add_by_inverse,
    route_ids,
)
from paramfleet_shared.tables.kernels.codecs.finite import any_reaches
from paramfleet_shared.tables.memory.shapes import check_array

__all__ = ["Routed", "all_finite", "merge_by_inverse", "mixed", "route"]

_EXPONENT = np.uint32(0x7F800000)

# n = ids of a batch, u = different ones, D = width of a row


class Routed(NamedTuple):
    """A batch sorted by shard; inside a shard the order is kept."""

    ids: NDArray[np.int64]
    """[n]"""
    positions: NDArray[np.int32]
    """[n]: where each stood: ``ids == batch[positions]``."""
    offsets: NDArray[np.int64]
    """[num_shards + 1]: shard ``s`` has ``ids[offsets[s] : offsets[s + 1]]``."""


def route(ids: NDArray[np.int64], num_shards: int) -> Routed:
    """Sort a batch by shard; an id's shard depends on the id and ``num_shards`` alone."""
    check_array(ids, np.int64, (-1,), table="")
    keys = as_input(ids, np.int64).view(np.uint64)
    routed = np.empty(keys.size, np.uint64)
    positions = np.empty(keys.size, np.int32)
    offsets = np.empty(num_shards + 1, np.int64)
    route_ids(keys, routed, positions, offsets)
    return Routed(routed.view(np.int64), positions, offsets)


def merge_by_inverse(
    grads: NDArray[np.float32], inverse: NDArray[np.int64], num_unique: int
) -> NDArray[np.float32]:
    """Return float32 [u, D]: for each unique id the sum of its gradients, in their order.

    Args:
        grads: float32 [n, D].
        inverse: int64 [n] from ``partition``, below ``num_unique``.
        num_unique: u.

    Raises:
        RowShapeError: if an array has the wrong shape or type.
    """
    check_array(inverse, np.int64, (-1,), table="")
    check_array(grads, np.float32, (inverse.size, -1), table="")
    dim = grads.shape[1]
    sums = np.zeros((num_unique, dim), np.float32)
    flat_grads = as_input(grads, np.float32).reshape(-1)
    add_by_inverse(flat_grads, as_input(inverse, np.int64), sums.reshape(-1), dim)
    return sums


def all_finite(array: NDArray[Any], *, log2: int = 128) -> bool:
    """Return whether every float32 in ``array``, of any shape, is below 2^``log2`` in size.

    With 128 all are that are neither infinite nor NaN.

    Raises:
        RowShapeError: if ``array`` is not float32.
    """
    flat = array.reshape(-1)
    check_array(flat, np.float32, (-1,), table="")
    bits = as_input(flat, np.float32).view(np.uint32)
    return not any_reaches(bits, _EXPONENT, np.uint32((log2 + 127) << 23))


def mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits of each key that depend on all of its bits (SplitMix64's last steps)."""
    bits = keys ^ (keys >> np.uint64(30))
    bits = bits * np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
