"""Duplicates out, sorted by shard, and the way back: what a batch needs before it travels.

A batch is sorted by shard first, so that the search for duplicates stays in the nearest
cache. Places are unsigned numbers: one with a sign could count from the end, which each use
of it as an index would have to look at.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel, uncounted
from paramfleet_shared.tables.kernels.basics.hashing import mix, shard_of
from paramfleet_shared.tables.kernels.basics.sorting import sort_numbered

__all__ = ["are_in_shards", "partition_ids"]

_1 = np.uint64(1)


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
    the shards. With ``by_id`` (a bool) keys are sorted inside their shard, too; else they
    stand by first appearance.
    """
    parted, places = np.empty(keys.size, np.uint64), np.empty(keys.size, np.uint32)
    mixed, shards = np.empty(keys.size, np.uint64), np.empty(keys.size, np.uint16)
    if by_id:
        ordered, numbers = keys.copy(), np.empty(keys.size, np.uint32)
        sort_numbered(ordered, numbers)
        _shards_of(ordered, mixed, shards, offsets)
        _by_shard(ordered, shards, offsets, parted, places)
        for i in range(keys.size):
            places[i] = numbers[places[i]]
        return _join_neighbours(parted, places, ids, inverse, offsets)
    _shards_of(keys, mixed, shards, offsets)
    _by_shard(keys, shards, offsets, parted, places)
    homes = np.empty(keys.size, np.uint32)
    for i in range(keys.size):
        homes[i] = mixed[places[i]]
    known = np.zeros(_places_for(offsets), np.int32)
    return _join_alike((parted, places, homes), known, ids, inverse, offsets)


@uncounted
def are_in_shards(
    keys: NDArray[np.uint64], bounds: NDArray[np.int64], first: int, num_shards: int
) -> bool:
    """Return whether each key lies in its shard: ``first`` begins at ``bounds[0]``, and so on.

    ``bounds`` rise, and are within ``keys``.
    """
    wrong = _1 ^ _1
    for shard in range(bounds.size - 1):
        here = np.uint64(first + shard)
        own = keys[bounds[shard] : bounds[shard + 1]]
        for i in range(own.size):
            wrong |= shard_of(mix(own[i]), num_shards) ^ here
    return bool(wrong == _1 ^ _1)


@uncounted
def _shards_of(
    keys: NDArray[np.uint64],
    mixed: NDArray[np.uint64],
    shards: NDArray[np.uint16],
    counts: NDArray[np.int64],
) -> None:
    """Fill in what each key mixes to and its shard; ``counts[s]`` becomes shard ``s``' keys."""
    num_shards = counts.size - 1
    counts[:] = 0
    for i in range(keys.size):  # loops of their own run in vectors
        mixed[i] = mix(keys[i])
    for i in range(keys.size):
        shards[i] = shard_of(mixed[i], num_shards)
    for i in range(keys.size):
        counts[shards[i]] += 1


@uncounted
def _by_shard(
    keys: NDArray[np.uint64],
    shards: NDArray[np.uint16],
    ends: NDArray[np.int64],
    parted: NDArray[np.uint64],
    places: NDArray[np.uint32],
) -> None:
    """Sort keys by shard, stably, into ``parted``; put into ``places`` where each stood.

    ``ends`` are the keys of each shard, and become where they end.
    """
    begin = np.int64(0)
    for shard in range(ends.size):
        count = ends[shard]
        ends[shard] = begin
        begin += count
    for i in range(keys.size):
        place = np.uint64(ends[shards[i]])
        ends[shards[i]] = place + _1
        parted[place] = keys[i]
        places[place] = i


@uncounted
def _places_for(ends: NDArray[np.int64]) -> int:
    """Return how many places a hash table of the largest shard's keys has.

    Four for each: every collision of keys is a branch that no processor predicts.
    """
    begin, largest = np.int64(0), np.int64(0)
    for shard in range(ends.size - 1):
        largest = max(largest, ends[shard] - begin)
        begin = ends[shard]
    num_places = 32
    while num_places < 4 * largest:
        num_places *= 2
    return num_places


@uncounted
def _join_alike(
    batch: tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]],
    known: NDArray[np.int32],
    ids: NDArray[np.uint64],
    inverse: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> int:
    """Number the keys of each shard by first appearance; return how many differ.

    ``batch`` is sorted by shard: keys, where they stood, and where they belong in
    ``known``, a hash table of one shard after the other. That begins as zeros, and holds
    1 + the number of the key at each place; a number not above the shard's first is of a
    former one. ``ends`` bound the shards in ``batch``, and then in ``ids``.
    """
    parted, places, homes = batch
    mask = np.uint64(known.size - 1)
    num, begin = np.uint64(0), np.int64(0)
    for shard in range(ends.size - 1):
        first, end = num, ends[shard]
        ends[shard] = first
        for i in range(begin, end):
            key = parted[i]
            place = np.uint64(homes[i]) & mask
            number = np.uint64(known[place])
            while number > first and ids[number - _1] != key:
                place = (place + _1) & mask
                number = np.uint64(known[place])
            if number <= first:
                ids[num] = key
                num += _1
                number = num
                known[place] = number
            inverse[places[i]] = number - _1
        begin = end
    ends[-1] = num
    return int(num)


@uncounted
def _join_neighbours(
    parted: NDArray[np.uint64],
    places: NDArray[np.uint32],
    ids: NDArray[np.uint64],
    inverse: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> int:
    """Number keys that are sorted inside their shard; otherwise as ``_join_alike``."""
    num, begin = np.uint64(0), np.int64(0)
    for shard in range(ends.size - 1):
        first, end = num, ends[shard]
        ends[shard] = first
        for i in range(begin, end):
            if num == first or ids[num - _1] != parted[i]:
                ids[num] = parted[i]
                num += _1
            inverse[places[i]] = num - _1
        begin = end
    ends[-1] = num
    return int(num)
