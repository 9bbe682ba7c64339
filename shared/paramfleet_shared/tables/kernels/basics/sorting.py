"""Sorting ids, digit by digit: as many passes as their values differ in digits."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel

__all__ = ["are_sorted", "order_within", "sort_numbered"]

_DIGIT = 11
"""Bits of a digit: its 2,048 counters stay in the nearest cache."""

_VALUES = 1 << _DIGIT
_MASK = np.uint64(_VALUES - 1)


@kernel
def sort_numbered(keys: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> None:
    """Sort keys in place, stably, and put into ``numbers`` where each of them stood."""
    every = np.uint64(0)
    for i in range(keys.size):
        numbers[i] = i
        every |= keys[i] ^ keys[0]
    counts = np.empty(_VALUES, np.int64)
    from_keys, from_numbers = keys, numbers
    to_keys, to_numbers = np.empty_like(keys), np.empty_like(numbers)
    is_away = False
    for low in range(0, 64, _DIGIT):
        shift = np.uint64(low)
        if (every >> shift) & _MASK == np.uint64(0):
            continue
        counts[:] = 0
        for i in range(keys.size):
            counts[(from_keys[i] >> shift) & _MASK] += 1
        place = np.int64(0)
        for digit in range(_VALUES):
            count = counts[digit]
            counts[digit] = place
            place += count
        for i in range(keys.size):
            value = (from_keys[i] >> shift) & _MASK
            to = np.uint64(counts[value])  # unsigned: not from the end
            counts[value] = to + np.uint64(1)
            to_keys[to] = from_keys[i]
            to_numbers[to] = from_numbers[i]
        from_keys, to_keys = to_keys, from_keys
        from_numbers, to_numbers = to_numbers, from_numbers
        is_away = not is_away
    if is_away:
        for i in range(keys.size):  # as arrays, numba would compile what tells of their shapes
            keys[i] = from_keys[i]
            numbers[i] = from_numbers[i]


@kernel
def are_sorted(keys: NDArray[np.uint64], offsets: NDArray[np.int64]) -> bool:
    """Return whether keys rise inside each part that ``offsets`` bound."""
    for part in range(offsets.size - 1):
        falls = 0
        for i in range(offsets[part] + 1, offsets[part + 1]):  # in vectors: no way out of it
            falls += keys[np.uint64(i)] < keys[np.uint64(i - 1)]
        if falls:
            return False
    return True


@kernel
def order_within(
    keys: NDArray[np.uint64], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> None:
    """Put the order into ``order`` that sorts keys inside each part."""
    parts = np.empty(keys.size, np.int32)
    for part in range(offsets.size - 1):
        parts[offsets[part] : offsets[part + 1]] = part
    numbers = np.empty(keys.size, np.uint32)
    sort_numbered(keys.copy(), numbers)
    nexts = offsets.copy()
    for i in range(keys.size):
        part = parts[numbers[i]]
        order[nexts[part]] = numbers[i]
        nexts[part] += 1
