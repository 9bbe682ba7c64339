"""Which entries of the log are of which keys: a hash table of their numbers.

A slot of the table has the number of an entry + 1, or 0. There are more slots than entries, so
each search ends.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = ["find_entries", "newest_entries", "note_entries", "split_keys"]

_32 = np.uint64(32)


@inlined
def _first_slot(key: Any, salt: Any, num_slots: Any) -> Any:
    return np.int64(((mix(key ^ salt) >> _32) * np.uint64(num_slots)) >> _32)


@inlined
def _slot_of(table: Any, keys: Any, key: Any, salt: Any) -> Any:
    """Return the slot of a key, or the free one where it would be."""
    slot = _first_slot(key, salt, table.size)
    while table[slot] and keys[table[slot] - 1] != key:
        slot += 1
        if slot == table.size:
            slot = 0
    return slot


@kernel
def find_entries(
    table: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    salt: np.uint64,
    wanted: NDArray[np.uint64],
    out: NDArray[np.int64],
) -> None:
    """Put the number of the newest entry of each wanted key to ``out``; -1 if there is none."""
    for i in range(wanted.size):
        out[i] = np.int64(table[_slot_of(table, keys, wanted[i], salt)]) - 1


@kernel
def note_entries(
    table: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    salt: np.uint64,
    first: int,
    last: int,
) -> int:
    """Take entries, whose keys are there, from ``first`` on and before ``last``.

    Returns:
        How many of them are of keys that had none.
    """
    num = 0
    for entry in range(first, last):
        slot = _slot_of(table, keys, keys[entry], salt)
        num += table[slot] == 0
        table[slot] = entry + 1
    return num


@kernel
def newest_entries(
    table: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    salt: np.uint64,
    out: NDArray[np.bool_],
) -> None:
    """Say of each entry whether there is no newer one of its key."""
    for entry in range(out.size):
        out[entry] = table[_slot_of(table, keys, keys[entry], salt)] == entry + 1


@kernel
def split_keys(
    keys: NDArray[np.uint64],
    salt: np.uint64,
    shape: tuple[int, int],
    order: NDArray[np.uint32],
    ends: NDArray[np.int64],
) -> None:
    """Put the numbers of keys to ``order`` by ranges, and to ``ends`` where each range ends.

    Args:
        keys: uint64 [n].
        salt: Of the tier.
        shape: Which bits of a key's hash count, and how many of these don't name its range.
        order: uint32 [n]; those of a range stay in the order of the keys.
        ends: int64 [ranges + 1], zeros.
    """
    mask, shift = shape
    for i in range(keys.size):
        ends[((np.int64(mix(keys[i] ^ salt)) & mask) >> shift) + 1] += 1
    for i in range(1, ends.size):
        ends[i] += ends[i - 1]
    for i in range(keys.size):
        number = (np.int64(mix(keys[i] ^ salt)) & mask) >> shift
        order[ends[number]] = i
        ends[number] += 1
