"""GEO's copies of rows that count their use: what is sent of them, and what comes.

A row has two counts first, show and click, which are added whole; what stands behind them is
divided among those who share the row. Counts fade by days.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel
from paramfleet_shared.tables.kernels.rows import AHEAD, prefetch_row

__all__ = ["CopyLayout", "agree_counted", "receive_counted", "take_counted"]

_COUNTS = 2
"""Show and click."""


class CopyLayout(NamedTuple):
    """Where in a row its numbers are, in floats."""

    dim: int
    """Numbers of a value, which stands first."""
    pitch: int
    """From row to row."""
    old: int
    """The value that was agreed."""
    agreed: int
    """The day on which the row was seen last when that was agreed, and whether it had its
    embedx."""
    seen: int
    """The same of the row itself."""
    grown: int


@kernel
def agree_counted(
    table: NDArray[np.float32],
    slots: NDArray[np.int64],
    layout: CopyLayout,
    rate: float,
    new: NDArray[np.int64],
) -> int:
    """Let what was agreed of rows fade to the day of the rows, and know that they have grown.

    Args:
        table: Flat.
        slots: int64 [n].
        layout: Of its rows.
        rate: What is left of a count after a day.
        new: int64 [n]; filled with the slots whose embedx isn't in what was agreed as yet.

    Returns:
        How many these are.
    """
    num = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * layout.pitch, layout.pitch)
        row = slots[i] * layout.pitch
        seen, grown = table[row + layout.seen], table[row + layout.grown]
        agreed, had = table[row + layout.agreed], table[row + layout.agreed + 1]
        if agreed > 0 and seen > agreed:
            left = np.float32(rate ** np.float64(seen - agreed))
            for j in range(_COUNTS):
                table[row + layout.old + j] *= left
        if grown != 0 and had == 0:
            new[num] = slots[i]
            num += 1
        table[row + layout.agreed] = seen
        table[row + layout.agreed + 1] = grown
    return num


@kernel
def take_counted(
    table: NDArray[np.float32],
    slots: NDArray[np.int64],
    deltas: NDArray[np.float32],
    layout: CopyLayout,
    how: tuple[np.float32, bool],
) -> None:
    """Take what rows have counted and learned since it was agreed.

    Args:
        table: Flat.
        slots: int64 [n], each once.
        deltas: Flat, [n, dim]; filled.
        layout: Of the table's rows.
        how: What differences are divided by, and whether the rest of them is dropped.
    """
    divisor, drops = how
    dim = layout.dim
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * layout.pitch, layout.pitch)
        row, to = slots[i] * layout.pitch, i * dim
        old = row + layout.old
        for j in range(_COUNTS):
            delta = max(table[row + j] - table[old + j], np.float32(0))
            deltas[to + j] = delta
            table[old + j] += delta
            table[row + j] = table[old + j]
        for j in range(_COUNTS, dim):
            delta = (table[row + j] - table[old + j]) / divisor
            deltas[to + j] = delta
            table[old + j] += delta
            if drops:
                table[row + j] = table[old + j]


@kernel
def receive_counted(
    table: NDArray[np.float32],
    slots: NDArray[np.int64],
    served: NDArray[np.float32],
    layout: CopyLayout,
    rate: float,
) -> None:
    """Take in rows that others changed, and keep what isn't sent as yet.

    Args:
        table: Flat; ``agree_counted`` has looked at the rows.
        slots: int64 [n], each once.
        served: Flat, [n, dim + 2]: values, the day on which each was seen last, and whether it
            has its embedx.
        layout: Of the table's rows.
        rate: What is left of a count after a day.
    """
    dim = layout.dim
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * layout.pitch, layout.pitch)
        row, of = slots[i] * layout.pitch, i * (dim + 2)
        old = row + layout.old
        seen, own = served[of + dim], table[row + layout.seen]
        today = max(seen, own)
        mine, theirs = np.float32(1), np.float32(1)
        if own > 0 and today > own:
            mine = np.float32(rate ** np.float64(today - own))
        if seen > 0 and today > seen:
            theirs = np.float32(rate ** np.float64(today - seen))
        for j in range(dim):
            cur, agreed, came = table[row + j], table[old + j], served[of + j]
            if j < _COUNTS:
                cur, agreed, came = cur * mine, agreed * mine, came * theirs
            table[row + j] = came if cur == agreed else cur + (came - agreed)
            table[old + j] = came
        grown = max(served[of + dim + 1], table[row + layout.grown])
        grown = np.float32(1) if grown != 0 else np.float32(0)
        table[row + layout.seen], table[row + layout.grown] = today, grown
        table[row + layout.agreed], table[row + layout.agreed + 1] = today, grown
