"""Which ids get a row: by a hash of the id, or by how often it came, counted in a sketch.

A sketch is a count-min sketch with conservative update (Estan and Varghese, 2002): an id has a
counter in each of ``DEPTH`` lines, and its count is the least of them; one more raises those
alone that are the least. It counts no id too low, and few too high.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = ["DEPTH", "MAX_WIDTH_BITS", "admit_by_hash", "count_keys", "counts_of"]

DEPTH = 3
"""Lines of a sketch."""

MAX_WIDTH_BITS = 21
"""Of a line's number of counters: so ``DEPTH`` places are cut from one hash."""

_SALT = np.uint64(0xA0761D6478BD642F)
"""So that which ids are admitted has nothing to do with their shards."""

_21 = np.uint64(MAX_WIDTH_BITS)


@kernel
def admit_by_hash(
    keys: NDArray[np.uint64], stream: np.uint64, most: np.uint64, admitted: NDArray[np.bool_]
) -> None:
    """Say of each key whether its hash is below ``most``."""
    for i in range(keys.size):
        admitted[i] = mix(mix(keys[i] ^ _SALT) ^ stream) < most


@inlined
def _place(hashed: Any, line: Any, width: Any) -> Any:
    """Return where in a flat sketch a key's counter of a line is."""
    bits = hashed >> (np.uint64(line) * _21)
    return np.int64(line) * width + np.int64(bits & np.uint64(width - 1))


@kernel
def count_keys(
    counters: NDArray[np.uint8],
    touched: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    least: int,
    admitted: NDArray[np.bool_],
) -> int:
    """Count each key, and say whether it has come ``least`` times; return how many haven't.

    Args:
        counters: Flat, ``DEPTH`` lines of a power of 2.
        touched: Of each page, counters beside each other that are as many in each, whether it
            has other than zeros.
        keys: Each once.
        least: From 1 to 255.
        admitted: [n]; filled.
    """
    width, num = counters.size // DEPTH, 0
    page = counters.size // touched.size
    for i in range(keys.size):
        hashed = mix(keys[i] ^ _SALT)
        count: Any = 255
        for line in range(DEPTH):
            count = min(count, np.int64(counters[_place(hashed, line, width)]))
        admitted[i] = count + 1 >= least
        if admitted[i]:
            continue
        num += 1
        for line in range(DEPTH):
            place = _place(hashed, line, width)
            if np.int64(counters[place]) == count:
                counters[place] = np.uint8(count + 1)
                touched[place // page] = True
    return num


@kernel
def counts_of(
    counters: NDArray[np.uint8], keys: NDArray[np.uint64], counts: NDArray[np.int32]
) -> None:
    """Say how often each key was counted, and count nothing.

    Args:
        counters: As of ``count_keys``.
        keys: [n].
        counts: [n]; filled.
    """
    width = counters.size // DEPTH
    for i in range(keys.size):
        hashed = mix(keys[i] ^ _SALT)
        count: Any = 255
        for line in range(DEPTH):
            count = min(count, np.int64(counters[_place(hashed, line, width)]))
        counts[i] = np.int32(count)
