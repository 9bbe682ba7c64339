"""The kernels that move: rows to columns, and to other rows. They release the GIL."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel, uncounted

__all__ = ["gather", "mix", "to_columns"]


@kernel
def to_columns(
    rows: tuple[
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.float32],
        NDArray[np.int64],
        NDArray[np.int64],
    ],
    order: NDArray[np.int64],
    is_float: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    columns: tuple[NDArray[np.int64], NDArray[np.float32]],
) -> None:
    """Lay rows out slot by slot.

    Args:
        rows: Their counts, int32 [R, S], integers and floats, and where each row's begin.
        order: int64 [B]: the rows to take.
        is_float: uint8 [S].
        offsets: int64 [S, B + 1], zero at its begin; becomes where each taken row's
            values begin within its slot's.
        columns: int64 and float32, as long as the taken rows' values; the values of
            all integer slots, and of all float slots, slot after slot.
    """
    counts, ids, floats, id_starts, float_starts = rows
    num_slots, size = len(is_float), len(order)
    cursors = np.zeros(2, np.int64)
    begins = np.empty(num_slots, np.int64)
    for slot in range(num_slots):
        total = np.int64(0)
        for at in range(size):
            total += counts[order[at], slot]
            offsets[slot, at + 1] = total
        kind = is_float[slot]
        begins[slot] = cursors[kind]
        cursors[kind] += total
    for at in range(size):
        row = order[at]
        next_id, next_float = id_starts[row], float_starts[row]
        for slot in range(num_slots):
            begin = begins[slot] + offsets[slot, at]
            if is_float[slot]:
                for each in range(counts[row, slot]):
                    columns[1][begin + each] = floats[next_float]
                    next_float += 1
            else:
                for each in range(counts[row, slot]):
                    columns[0][begin + each] = ids[next_id]
                    next_id += 1


@uncounted
def gather(
    values: NDArray[Any], starts: NDArray[np.int64], order: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Copy the values of the rows of ``order`` into ``out``, one behind the other."""
    to = 0
    for row in order:
        for at in range(starts[row], starts[row + 1]):
            out[to] = values[at]
            to += 1


@uncounted
def mix(
    counts: NDArray[np.int32],
    values: NDArray[Any],
    starts: NDArray[np.int64],
    other: NDArray[np.int64],
    slots: NDArray[np.uint8],
    out: NDArray[Any],
) -> None:
    """Copy the rows' values of one kind, some slots' taken from other rows.

    Args:
        counts: int32 [R, S].
        values: All integers, or all floats.
        starts: int64 [R + 1]: where each row's values begin.
        other: int64 [R]: the row that the marked slots are taken from.
        slots: uint8 [S]: 0 for a slot of the other kind, 1 for one that stays, 2 for one
            that is taken from the other row.
        out: As long as ``values``; the rows' values one behind the other.
    """
    to = 0
    for row in range(len(other)):
        here, there = starts[row], starts[other[row]]
        for slot in range(len(slots)):
            if slots[slot] == 0:
                continue
            taken, begin = row, here
            if slots[slot] == 2:
                taken, begin = other[row], there
            for each in range(counts[taken, slot]):
                out[to] = values[begin + each]
                to += 1
            here += counts[row, slot]
            there += counts[other[row], slot]
