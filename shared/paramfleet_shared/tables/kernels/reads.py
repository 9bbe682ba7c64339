"""Reading rows: from ids to values in one pass.

A batch goes through its stages in strips: ask for the lines of the index, look into those
asked for a while ago and ask for the rows, copy the rows asked for a while ago. So memory
always has several requests to work on, and what it brought is used while it is near.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, kernel, uncounted
from paramfleet_shared.tables.kernels.firsts import Firsts, fill_firsts, fill_states
from paramfleet_shared.tables.kernels.index import (
    AIMED,
    CROWDED,
    DONE,
    IN_RING,
    LEAD,
    PAGES,
    RING,
    ROWS,
    STRIP,
    Index,
    aim,
    create_slots,
    match,
    match_beyond,
    strip_of,
)
from paramfleet_shared.tables.kernels.rows import LINE_FLOATS, Layout, copy_span, prefetch_row

__all__ = ["Table", "ask_rows", "create_rows", "fill_rows", "pull_rows"]


class Table(NamedTuple):
    """The rows of a shard, as kernels that create them take them."""

    arrays: Index
    firsts: Firsts
    values: NDArray[Any]
    """Flat, row by row: float32, or 16 bits each (see ``halves``)."""
    floats: NDArray[np.float32]
    """The same memory as floats, for the states."""
    layout: Layout
    first: NDArray[Any]
    """[dim]: room for a row that isn't kept, rounded as if it were."""
    total: NDArray[np.float32]
    """[dim]: room for a sum."""


@inlined
def ask_rows(floats: Any, pitch: int, slots: Any, width: int) -> None:
    """Bring the first ``width`` floats of rows near."""
    if width == LINE_FLOATS:  # known widths make straight code
        for i in range(slots.size):
            prefetch_row(floats, max(slots[i], 0) * pitch, LINE_FLOATS)
    elif width == 2 * LINE_FLOATS:
        for i in range(slots.size):
            prefetch_row(floats, max(slots[i], 0) * pitch, 2 * LINE_FLOATS)
    elif width == 3 * LINE_FLOATS:
        for i in range(slots.size):
            prefetch_row(floats, max(slots[i], 0) * pitch, 3 * LINE_FLOATS)
    else:
        for i in range(slots.size):
            prefetch_row(floats, max(slots[i], 0) * pitch, width)


@inlined
def copy_rows(out: Any, values: Any, pitch: int, slots: Any, dim: int) -> None:
    """Copy the values of rows to ``out``, a flat array."""
    if dim == LINE_FLOATS:
        for i in range(slots.size):
            start = max(slots[i], 0) * pitch
            copy_span(out, i * LINE_FLOATS, values, start, LINE_FLOATS)
    else:
        for i in range(slots.size):
            copy_span(out, i * dim, values, max(slots[i], 0) * pitch, dim)


@kernel
def fill_rows(table: Table, start: int, stop: int) -> None:
    """Give the rows of new slots their first values and state."""
    index, firsts, values, floats, layout, _first, _total = table
    dim, value_pitch, pitch, first_state = layout
    new = values[start * value_pitch : stop * value_pitch]
    fill_firsts(firsts, index.ids[start:stop], new, (dim, value_pitch))
    if first_state < pitch:
        shape = (first_state, pitch, pitch)
        fill_states(firsts.state, floats[start * pitch : stop * pitch], shape)


@kernel
def create_rows(
    table: Table, keys: NDArray[np.uint64], absent: NDArray[np.int64], slots: NDArray[np.int64]
) -> int:
    """Make rows of the keys at ``absent``, as ``create_slots`` does slots."""
    counts = table.arrays.counts
    before = counts[ROWS]
    outcome = create_slots(table.arrays, keys, absent, slots)
    if counts[ROWS] > before:
        fill_rows(table, before, counts[ROWS])
    return outcome


@kernel
def _read_firsts(
    table: Table,
    keys: NDArray[np.uint64],
    slots: NDArray[np.int64],
    out: NDArray[np.float32],
    where: tuple[int, int],
) -> None:
    """Fill rows of ``out`` whose slot is -1; ``where`` = (start, stop)."""
    dim, first = table.layout.dim, table.first
    for i in range(where[0], where[1]):
        if slots[i & IN_RING] < 0:
            fill_firsts(table.firsts, keys[i : i + 1], first, (dim, dim))
            copy_span(out, i * dim, first, 0, dim)


@uncounted
def pull_rows(
    table: Table, keys: NDArray[np.uint64], out: NDArray[np.float32], create: Any
) -> int:
    """Copy the value of each key to ``out``; return ``DONE`` or ``CROWDED``.

    ``out`` is flat. With ``create`` (a bool) new keys become rows, for which there must be
    room; without, they read as what they would begin with.
    """
    index, _firsts, values, floats, layout, _first, _total = table
    lines, words, _ids, counts, _moving, _fill, rings = index
    dim, value_pitch, pitch, width = layout
    homes, slots, missed, before = rings[0], rings[1], rings[2], rings[3]
    holes = rings[4, : RING // STRIP]  # rows that aren't there, of each strip
    num, num_before = keys.size, 0
    aim(lines, counts, keys, (0, min(num, LEAD)), homes)
    for start in range(0, num + LEAD, STRIP):
        here, stop, ahead = min(start, num), min(start + STRIP, num), min(start + AIMED, num)
        num_missed = match(lines, keys, (here, stop), (homes, slots, missed))
        ask_rows(floats, pitch, strip_of(slots, here)[: stop - here], width)
        aim(lines, counts, keys, (min(start + LEAD, num), ahead), homes)
        num_absent = match_beyond(lines, words, keys, num_before, (homes, slots, before))
        holes[((start - STRIP) & IN_RING) // STRIP] = num_absent
        if create and num_absent:
            pages = counts[PAGES]
            new = before[:num_absent]
            if create_rows(table, keys, new, slots) != DONE:
                return CROWDED
            if counts[PAGES] != pages:
                aim(lines, counts, keys, (here, ahead), homes)
        for j in range(num_before):
            prefetch_row(floats, max(slots[before[j] & IN_RING], 0) * pitch, width)
        first, end = max(start - LEAD, 0), max(min(start + STRIP - LEAD, num), 0)
        copied = strip_of(slots, first)[: end - first]
        copy_rows(out[first * dim : end * dim], values, value_pitch, copied, dim)
        if not create and holes[((start - LEAD) & IN_RING) // STRIP]:
            _read_firsts(table, keys, slots, out, (first, end))
        missed, before, num_before = before, missed, num_missed
    return DONE
