"""What a batch of ids and gradients needs before it meets a table."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.hashing import mix, shard_of
from paramfleet_shared.tables.kernels.lanes import (
    LANES,
    load_lanes,
    prefetch,
    store_lanes,
)
from paramfleet_shared.tables.kernels.rows import AHEAD, copy_span, prefetch_row
from paramfleet_shared.tables.kernels.rules import Step, step_span

__all__ = ["Chains", "add_by_inverse", "chain", "dedup_ids", "route_ids", "step_rows"]


class Chains(NamedTuple):
    """A batch's rows, grouped by slot, each group in order of arrival."""

    places: NDArray[np.int32]
    """Scratch: a hash table, a power of 2 of at least 2 n places, zero between calls."""
    slots: NDArray[np.int64]
    """[groups]: in order of first arrival."""
    heads: NDArray[np.int32]
    """[groups]: position in the batch of the first row."""
    tails: NDArray[np.int32]
    """[groups]: and of the last."""
    repeats: NDArray[np.int32]
    """[repeated]: the groups of more than one row."""
    nexts: NDArray[np.int32]
    """[n]: position of the same group's next row, -1 at its end."""


@kernel
def chain(chains: Chains, batch: NDArray[np.int64]) -> tuple[int, int]:
    """Group a batch of slots; return (groups, repeated)."""
    # Arrays are taken out of the tuple once: each access would count a reference.
    places, slots, heads, tails, repeats, nexts = chains
    mask = np.int64(places.size - 1)
    groups, repeated = 0, 0
    for i in range(batch.size):
        slot = batch[i]
        nexts[i] = -1
        place = ((slot * np.int64(0x9E3779B1)) >> 12) & mask
        while True:
            group = np.int64(places[place]) - 1
            if group < 0:
                places[place] = groups + 1
                slots[groups] = slot
                heads[groups] = i
                tails[groups] = i
                groups += 1
                break
            if slots[group] == slot:
                if tails[group] == heads[group]:
                    repeats[repeated] = group
                    repeated += 1
                nexts[tails[group]] = i
                tails[group] = i
                break
            place = (place + 1) & mask
    places[:] = 0
    return groups, repeated


@inlined
def _add_span(target: Any, to: Any, source: Any, start: Any, count: Any) -> None:
    """Add ``count`` floats between flat offsets."""
    whole = count - count % LANES
    for j in range(0, whole, LANES):
        store_lanes(target, to + j, load_lanes(target, to + j) + load_lanes(source, start + j))
    for j in range(whole, count):
        target[to + j] += source[start + j]


@kernel
def step_rows(
    step: Step,
    chains: Chains,
    counts: tuple[int, int],
    table: NDArray[np.float32],
    grads: NDArray[np.float32],
    shape: tuple[int, int],
) -> None:
    """Step the row of each group with the sum of its gradients.

    ``counts`` are what ``chain`` returned; ``table`` and ``grads`` are flat, ``shape`` =
    (dim, pitch): floats of a gradient and of a row.
    """
    dim, pitch = shape
    _places, slots, heads, _tails, repeats, nexts = chains
    for i in range(counts[0]):
        if i + AHEAD < counts[0]:
            prefetch_row(table, slots[i + AHEAD] * pitch, pitch)
            prefetch_row(grads, np.int64(heads[i + AHEAD]) * dim, dim)
        if nexts[heads[i]] < 0:
            row, grad = slots[i] * pitch, np.int64(heads[i]) * dim
            step_span(step, table, grads, (row, row + dim, row + 2 * dim, grad), dim)
    total = np.empty(dim, np.float32)
    for i in range(counts[1]):
        group = np.int64(repeats[i])
        copy_span(total, 0, grads, np.int64(heads[group]) * dim, dim)
        follower = np.int64(nexts[heads[group]])
        while follower >= 0:
            _add_span(total, 0, grads, follower * dim, dim)
            follower = np.int64(nexts[follower])
        row = slots[group] * pitch
        step_span(step, table, total, (row, row + dim, row + 2 * dim, 0), dim)


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
    offsets[:] = starts
    for i in range(keys.size):
        place = starts[shards[i]]
        starts[shards[i]] = place + 1
        routed[place] = keys[i]
        positions[place] = i


@kernel
def dedup_ids(
    keys: NDArray[np.uint64],
    places: NDArray[np.int32],
    unique: NDArray[np.uint64],
    inverse: NDArray[np.int64],
) -> int:
    """Number keys by first appearance; return how many differ.

    ``places`` is a zeroed hash table, a power of 2 of at least 2 n places.
    """
    mask = np.uint64(places.size - 1)
    num = 0
    for i in range(keys.size):
        key = keys[i]
        place = np.int64(mix(key) & mask)
        while True:
            known = np.int64(places[place]) - 1
            if known < 0:
                places[place] = num + 1
                unique[num] = key
                inverse[i] = num
                num += 1
                break
            if unique[known] == key:
                inverse[i] = known
                break
            place = (place + 1) & np.int64(mask)
    return num


@kernel
def add_by_inverse(
    grads: NDArray[np.float32], inverse: NDArray[np.int64], sums: NDArray[np.float32], dim: int
) -> None:
    """Add each gradient to the sum ``inverse`` names; all flat, ``dim`` floats a row."""
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            prefetch(sums, inverse[i + AHEAD] * dim)
        _add_span(sums, inverse[i] * dim, grads, i * dim, dim)
