"""Duplicates out, sorted by shard, and the way back: what a batch needs before it travels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import kernel
from paramfleet_shared.tables.kernels.hashing import mix, shard_of
from paramfleet_shared.tables.kernels.lanes import prefetch
from paramfleet_shared.tables.kernels.sorting import sort_numbered

__all__ = ["partition_ids"]

_AHEAD = 16
"""Keys between the one looked up and the one prefetched."""


@kernel
def partition_ids(
    keys: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    inverse: NDArray[np.int64],
    offsets: NDArray[np.int64],
    by_id: Any,
) -> int:
    """Put the different keys into ``ids``, sorted by shard; return how many there are.

    ``ids`` and ``inverse`` are as long as ``keys``; ``offsets`` [num_shards + 1] bound
    the shards. With ``by_id`` (a bool) keys are sorted inside their shard, too.
    """
    if offsets.size == 2 and not by_id:
        num = _number(keys, ids, inverse)
        offsets[0], offsets[1] = 0, num
        return num
    firsts = np.empty(keys.size, np.uint64)
    num = _number(keys, firsts, inverse)
    places = np.empty(num, np.int32)
    if by_id:
        numbers, sorted_places = np.empty(num, np.int32), np.empty(num, np.int32)
        sort_numbered(firsts[:num], numbers)
        _sort(firsts[:num], ids, sorted_places, offsets)
        for i in range(num):
            places[numbers[i]] = sorted_places[i]
    else:
        _sort(firsts[:num], ids, places, offsets)
    for i in range(keys.size):
        inverse[i] = places[inverse[i]]
    return num


@kernel
def _number(
    keys: NDArray[np.uint64], firsts: NDArray[np.uint64], inverse: NDArray[np.int64]
) -> int:
    """Number keys by first appearance; return how many differ."""
    num_places = 32
    while num_places < 2 * keys.size:
        num_places *= 2
    mask = np.int64(num_places - 1)
    known = np.zeros(num_places, np.int32)  # 1 + the number of the key at this place
    mixed = np.empty(keys.size, np.uint64)
    for i in range(keys.size):
        mixed[i] = mix(keys[i])
    num = 0
    for i in range(keys.size):
        if i + _AHEAD < keys.size:
            prefetch(known, np.int64(mixed[i + _AHEAD]) & mask)
        place = np.int64(mixed[i]) & mask
        while known[place] and firsts[known[place] - 1] != keys[i]:
            place = (place + 1) & mask
        if not known[place]:
            firsts[num] = keys[i]
            num += 1
            known[place] = num
        inverse[i] = known[place] - 1
    return num


@kernel
def _sort(
    firsts: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    places: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> None:
    """Sort different keys by shard, stably, and say where each went."""
    num_shards = offsets.size - 1
    shards = np.empty(firsts.size, np.uint16)
    nexts = np.zeros(num_shards + 1, np.int64)
    for number in range(firsts.size):
        shards[number] = shard_of(mix(firsts[number]), num_shards)
        nexts[np.int64(shards[number]) + 1] += 1
    for shard in range(num_shards):
        nexts[shard + 1] += nexts[shard]
    offsets[:] = nexts
    for number in range(firsts.size):
        place = nexts[shards[number]]
        nexts[shards[number]] = place + 1
        ids[place] = firsts[number]
        places[number] = place
