"""A worker's own rows: stepped where they lie, and compared with what was agreed.

Every kernel takes a flat ``table`` whose rows hold several columns beside each other,
and the slots it works on, each once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel, uncounted
from paramfleet_shared.tables.kernels.basics.lanes import LANES, load_lanes, store_lanes
from paramfleet_shared.tables.kernels.rows import copy_span, prefetch_row
from paramfleet_shared.tables.kernels.stepping.rules import Step, step_span

__all__ = ["differing", "note_slots", "receive_rows", "step_slots", "take_deltas"]

AHEAD = 16
"""Rows between the one worked on and the one prefetched: these rows are wide."""


@uncounted
def step_slots(
    step: Step,
    table: NDArray[np.float32],
    grads: NDArray[np.float32],
    slots: NDArray[np.int64],
    layout: tuple[int, int, int, int],
) -> None:
    """Step the row at each slot with its gradient.

    ``grads`` is flat; ``layout`` = (dim, pitch, first state, second state): floats of a
    gradient and of a row, and where in a row the states begin.
    """
    dim, pitch, state, second = layout
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * pitch, pitch)
        row = slots[i] * pitch
        step_span(step, table, grads, (row, row + state, row + second, i * dim), dim)


@kernel
def note_slots(
    slots: NDArray[np.int64],
    marks: NDArray[np.uint8],
    noted: NDArray[np.int64],
    num_noted: int,
) -> int:
    """Mark slots and append those without a mark to ``noted``; return its new length."""
    for i in range(slots.size):
        if not marks[slots[i]]:
            marks[slots[i]] = 1
            noted[num_noted] = slots[i]
            num_noted += 1
    return num_noted


@inlined
def _send_span(table: Any, at: tuple[Any, Any], deltas: Any, to: Any, rest: Any) -> None:
    """Take one row's delta; ``rest`` = (floats, divisor, whether the unsent is dropped)."""
    cur, old = at
    dim, divisor, drops = rest
    whole = dim - dim % LANES
    for j in range(0, whole, LANES):
        agreed = load_lanes(table, old + j)
        delta = (load_lanes(table, cur + j) - agreed) / divisor
        store_lanes(deltas, to + j, delta)
        store_lanes(table, old + j, agreed + delta)
    for j in range(whole, dim):
        delta = (table[cur + j] - table[old + j]) / divisor
        deltas[to + j] = delta
        table[old + j] += delta
    if drops:
        copy_span(table, cur, table, old, dim)


@kernel
def take_deltas(
    table: NDArray[np.float32],
    slots: NDArray[np.int64],
    deltas: NDArray[np.float32],
    layout: tuple[int, int, int],
    how: tuple[np.float32, bool],
) -> None:
    """For each slot ``delta = (cur - old) / divisor; old += delta``.

    ``deltas`` is flat; ``layout`` = (dim, pitch, old): where in a row the agreed values
    begin; ``how`` = (divisor, whether ``cur`` becomes ``old`` afterwards).
    """
    dim, pitch, old = layout
    divisor, drops = how
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * pitch, dim)
            prefetch_row(table, slots[i + AHEAD] * pitch + old, dim)
        row = slots[i] * pitch
        _send_span(table, (row, row + old), deltas, i * dim, (dim, divisor, drops))


@kernel
def receive_rows(
    table: NDArray[np.float32],
    slots: NDArray[np.int64],
    served: NDArray[np.float32],
    layout: tuple[int, int, int],
) -> None:
    """For each slot ``cur += served - old; old = served``; ``cur = served`` if all is sent.

    ``served`` is flat, ``layout`` as ``take_deltas`` has it.
    """
    dim, pitch, old = layout
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * pitch, dim)
            prefetch_row(table, slots[i + AHEAD] * pitch + old, dim)
        row = slots[i] * pitch
        cur, agreed = table[row : row + dim], table[row + old : row + old + dim]
        received = served[i * dim : i * dim + dim]
        for j in range(dim):
            moved = cur[j] + (received[j] - agreed[j])
            cur[j] = received[j] if cur[j] == agreed[j] else moved
            agreed[j] = received[j]


@kernel
def differing(
    table: NDArray[np.float32],
    num_rows: int,
    slots: NDArray[np.int64],
    layout: tuple[int, int, int],
) -> int:
    """Put the slots of rows whose ``cur`` is not ``old`` into ``slots``; return how many."""
    dim, pitch, old = layout
    num = 0
    for slot in range(num_rows):
        row = slot * pitch
        slots[num] = slot
        for j in range(row, row + dim):
            if table[j] != table[j + old]:
                num += 1
                break
    return num
