"""Which rows stay in memory: a clock's hand, and a sketch of counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = ["LINES", "MOST_COUNT", "counts_of", "halve", "note_used", "sweep_hand"]

LINES = 4
"""Of a sketch."""
MOST_COUNT = 15

_STEP = np.uint64(0x9E3779B97F4A7C15)


@kernel
def sweep_hand(
    bits: NDArray[np.uint8], live: NDArray[np.uint8], hand: int, victims: NDArray[np.int64]
) -> int:
    """Choose slots that weren't touched since the hand came by last; return where it stands.

    There must be as many live slots as ``victims`` is long; those that are chosen aren't live
    any more.
    """
    num = 0
    while num < victims.size:
        if live[hand]:
            if bits[hand]:
                bits[hand] = 0
            else:
                victims[num] = hand
                live[hand] = 0
                num += 1
        hand += 1
        if hand == bits.size:
            hand = 0
    return hand


@inlined
def _place(key: Any, line: Any, width: Any) -> Any:
    return np.int64(mix(key + np.uint64(line + 1) * _STEP) & np.uint64(width - 1))


@inlined
def _count(sketch: Any, key: Any) -> None:
    """Count a key, up to ``MOST_COUNT``."""
    for line in range(LINES):
        at = _place(key, line, sketch.shape[1])
        if sketch[line, at] < MOST_COUNT:
            sketch[line, at] += 1


@kernel
def note_used(
    keys: NDArray[np.uint64],
    slots: NDArray[np.int64],
    bits: NDArray[np.uint8],
    sketch: NDArray[np.uint8],
    flags: tuple[NDArray[np.uint8], int],
    missing: NDArray[np.uint64],
) -> tuple[int, int]:
    """Note rows that are used.

    A row is counted when its bit isn't set: as often as the hand finds it used, about. The
    most used ones, which are most of a call, cost little then.

    Args:
        keys: Of the rows.
        slots: Of the rows; -1 of one that isn't in memory.
        bits: Which slots were touched since the hand came by; set.
        sketch: [LINES, a power of 2]
        flags: Of the slots; and which of their bits stay.
        missing: Gets the keys that aren't in memory.

    Returns:
        How many aren't in memory, and how many were counted.
    """
    num, counted = 0, 0
    for i in range(keys.size):
        slot = slots[i]
        if slot < 0:
            missing[num] = keys[i]
            num += 1
        else:
            flags[0][slot] &= np.uint8(flags[1])
            if bits[slot]:
                continue
            bits[slot] = 1
        counted += 1
        _count(sketch, keys[i])
    return num, counted


@kernel
def counts_of(
    sketch: NDArray[np.uint8], keys: NDArray[np.uint64], out: NDArray[np.uint8]
) -> None:
    """Put the count of each key to ``out``: none too low."""
    for i in range(keys.size):
        least = np.uint8(255)
        for line in range(LINES):
            least = min(least, sketch[line, _place(keys[i], line, sketch.shape[1])])
        out[i] = least


@kernel
def halve(sketch: NDArray[np.uint8]) -> None:
    """Halve all counts."""
    for line in range(LINES):
        for at in range(sketch.shape[1]):
            sketch[line, at] >>= 1
