"""Which rows stay in memory: a clock's hand, and a sketch of counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = [
    "BLOCK",
    "BROUGHT",
    "FOUND",
    "LINES",
    "MOST_COUNT",
    "counts_of",
    "halve",
    "note_used",
    "sweep_hand",
]

LINES = 4
"""Of a sketch: a key is counted once in each of them."""
BLOCK = 64
"""Counts beside each other, ``BLOCK // LINES`` of each line: those of a key are in one block,
so memory is waited for once."""
MOST_COUNT = 15

FOUND, BROUGHT = 1, 2
"""Of a row that waits for its use: it was in memory when it was asked for, or came then."""

_STEP = np.uint64(0x9E3779B97F4A7C15)


@kernel
def sweep_hand(
    bits: NDArray[np.uint8],
    live: NDArray[np.uint8],
    waits: NDArray[np.uint8],
    hand: int,
    victims: NDArray[np.int64],
) -> int:
    """Choose slots that weren't touched since the hand came by last; return where it stands.

    Args:
        bits: Which slots were touched: [S].
        live: Those that may be chosen; those that are chosen aren't live any more.
        waits: Those that are chosen if there are no others: [S], or none.
        hand: Where it stands.
        victims: Filled; there must be as many live slots.
    """
    num = 0
    spared = 2 * bits.size if waits.size else 0
    while num < victims.size:
        if live[hand]:
            if bits[hand]:
                bits[hand] = 0
            elif spared == 0 or waits[hand] == 0:
                victims[num] = hand
                live[hand] = 0
                num += 1
        spared -= spared > 0
        hand += 1
        if hand == bits.size:
            hand = 0
    return hand


@inlined
def _place(bits: Any, line: Any) -> Any:
    """Return where in its block a key of hash ``bits`` is counted for a line."""
    share = BLOCK // LINES
    return line * share + np.int64((bits >> np.uint64(44 + 4 * line)) & np.uint64(share - 1))


@inlined
def _count(sketch: Any, key: Any) -> None:
    """Count a key, up to ``MOST_COUNT``."""
    bits = mix(key + _STEP)
    block = np.int64(bits & np.uint64(sketch.shape[0] - 1))
    for line in range(LINES):
        at = _place(bits, line)
        if sketch[block, at] < MOST_COUNT:
            sketch[block, at] += 1


@kernel
def note_used(
    keys: NDArray[np.uint64],
    slots: NDArray[np.int64],
    bits: NDArray[np.uint8],
    sketch: NDArray[np.uint8],
    flags: tuple[NDArray[np.uint8], int, NDArray[np.uint8]],
    missing: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Note rows that are used.

    A row is counted when its bit isn't set: as often as the hand finds it used, about. The
    most used ones, which are most of a call, cost little then.

    Args:
        keys: Of the rows.
        slots: Of the rows; -1 of one that isn't in memory.
        bits: Which slots were touched since the hand came by; set.
        sketch: [a power of 2, BLOCK]
        flags: Of the slots; which of their bits stay; and which of them wait for their use,
            [S] or none: those that are used wait no more.
        missing: Gets the keys that aren't in memory.

    Returns:
        How many aren't in memory, how many were counted, how many have waited, and how many
        of those ``BROUGHT``.
    """
    of_slots, stays, waits = flags
    num, counted, waited, brought = 0, 0, 0, 0
    for i in range(keys.size):
        slot = slots[i]
        if slot < 0:
            missing[num] = keys[i]
            num += 1
        else:
            of_slots[slot] &= np.uint8(stays)
            if waits.size and waits[slot]:
                waited += 1
                brought += waits[slot] == BROUGHT
                waits[slot] = 0
            if bits[slot]:
                continue
            bits[slot] = 1
        counted += 1
        _count(sketch, keys[i])
    return num, counted, waited, brought


@kernel
def counts_of(
    sketch: NDArray[np.uint8], keys: NDArray[np.uint64], out: NDArray[np.uint8]
) -> None:
    """Put the count of each key to ``out``: none too low."""
    for i in range(keys.size):
        least = np.uint8(255)
        bits = mix(keys[i] + _STEP)
        block = np.int64(bits & np.uint64(sketch.shape[0] - 1))
        for line in range(LINES):
            least = min(least, sketch[block, _place(bits, line)])
        out[i] = least


@kernel
def halve(sketch: NDArray[np.uint8]) -> None:
    """Halve all counts."""
    for block in range(sketch.shape[0]):
        for at in range(BLOCK):
            sketch[block, at] >>= 1
