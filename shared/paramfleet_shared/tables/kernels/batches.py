"""What a batch of ids and gradients needs before it is used with a table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix, shard_of
from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    load_lanes,
    prefetch,
    store_lanes,
)
from paramfleet_shared.tables.kernels.rows import AHEAD

__all__ = ["add_by_inverse", "add_span", "route_ids"]


@inlined
def add_span(target: Any, to: Any, source: Any, start: Any, count: Any) -> None:
    """Add ``count`` floats between flat offsets."""
    whole = count - count % LANES
    for j in range(0, whole, LANES):
        store_lanes(target, to + j, load_lanes(target, to + j) + load_lanes(source, start + j))
    for j in range(whole, count):
        target[to + j] += source[start + j]


@kernel
def route_ids(
    keys: NDArray[np.uint64],
    routed: NDArray[np.uint64],
    positions: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> None:
    """Sort keys by shard, stably; ``offsets`` [num_shards + 1] bound the shards."""
    num_shards = offsets.size - 1
    shards = np.empty(keys.size, np.uint16)
    for i in range(keys.size):
        shards[i] = shard_of(mix(keys[i]), num_shards)
    starts = np.zeros(num_shards + 1, np.int64)
    for i in range(keys.size):
        starts[np.int64(shards[i]) + 1] += 1
    for shard in range(num_shards):
        starts[shard + 1] += starts[shard]
    for shard in range(offsets.size):  # one by one: see ``sort_numbered``
        offsets[shard] = starts[shard]
    for i in range(keys.size):
        place = starts[shards[i]]
        starts[shards[i]] = place + 1
        routed[place] = keys[i]
        positions[place] = i


@kernel
def add_by_inverse(
    grads: NDArray[np.float32], inverse: NDArray[np.int64], sums: NDArray[np.float32], dim: int
) -> None:
    """Add each gradient to the sum ``inverse`` names; all flat, ``dim`` floats a row."""
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            prefetch(sums, inverse[i + AHEAD] * dim)
        add_span(sums, inverse[i] * dim, grads, i * dim, dim)
