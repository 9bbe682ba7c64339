"""Reading rows: from ids to values in one pass over a batch (see ``seek``)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, kernel, uncounted
from paramfleet_shared.tables.kernels.firsts import Firsts, fill_firsts, fill_states
from paramfleet_shared.tables.kernels.index import (
    CROWDED,
    DONE,
    LEAD,
    ROWS,
    STRIP,
    Index,
    create_slots,
)
from paramfleet_shared.tables.kernels.lanes import match_line, prefetch
from paramfleet_shared.tables.kernels.rows import (
    LINE_FLOATS,
    Layout,
    copy_line,
    copy_span,
    prefetch_row,
)
from paramfleet_shared.tables.kernels.seek import (
    NONE,
    aim,
    ask_first,
    lag_of,
    look_beyond,
    shift,
    sort_out,
)

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


@uncounted
def ask_rows(table: Table, num: int, width: int) -> None:
    """Bring the first ``width`` floats near of the rows of keys that were found."""
    slots, floats, pitch = table.arrays.missed[5], table.floats, table.layout.pitch
    for j in range(num):
        prefetch_row(floats, slots[j] * pitch, width)


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
def create_rows(table: Table, keys: NDArray[np.uint64], num: int) -> int:
    """Make rows of those keys looked for that have none; return ``DONE`` or ``CROWDED``."""
    counts = table.arrays.counts
    _missed, numbers, _places, values, _found, _slots = table.arrays.missed
    before = counts[ROWS]
    outcome = create_slots(table.arrays, keys, numbers[:num], values)
    if counts[ROWS] > before:
        fill_rows(table, before, counts[ROWS])
    return outcome


@kernel
def _read_firsts(
    table: Table, key: NDArray[np.uint64], out: NDArray[np.float32], start: int
) -> None:
    """Put what a key would begin with to ``out`` from ``start`` on."""
    dim, first = table.layout.dim, table.first
    fill_firsts(table.firsts, key, first, (dim, dim))
    copy_span(out, start, first, 0, dim)


@inlined
def _read_strip(arrays: Any, batch: Any, lists: Any, shape: Any, copy: Any) -> Any:
    """Look into the home lines of a strip, and copy the rows that were asked for before.

    ``arrays`` = (lines, floats, values), ``batch`` = (keys, where the strip starts, out),
    ``lists`` = (homes, slots, missed), ``shape`` = (dim, value pitch, pitch, width), ``copy``
    is ``copy_span`` or its like. Return how many keys were missed; in place of their rows the
    table's first is copied.
    """
    lines, floats, values = arrays
    keys, start, out = batch
    homes, slots, missed = lists
    dim, value_pitch, pitch, width = shape
    strip, num_missed = keys[start : start + STRIP], 0
    for j in range(strip.size + lag_of(keys, start)):
        if j < strip.size:
            prefetch(lines, homes[j + LEAD] << 3)
            slot = match_line(lines, homes[j], strip[j]) - 1
            # Without a branch, which would be mispredicted; unsigned: not from the end.
            missed[np.uint64(num_missed)] = start + j
            num_missed += slot < 0
            slot = max(slot, 0)
            slots[j + LEAD] = slot
            prefetch_row(floats, slot * pitch, width)
        i = start + j - LEAD
        if i >= 0:
            copy(out, i * dim, values, slots[j] * value_pitch, dim)
    shift(slots, strip.size)
    return num_missed


@uncounted
def _read_home(
    table: Table, keys: NDArray[np.uint64], start: int, out: NDArray[np.float32]
) -> int:
    """Call ``_read_strip``; a function of its own, so that it has registers enough."""
    index, values, floats = table.arrays, table.values, table.floats
    arrays = (index.lines, floats, values)
    lists = (index.strips[0], index.strips[1], index.missed[0])
    batch = (keys, start, out)
    dim, value_pitch, pitch, width = table.layout
    if dim == LINE_FLOATS and width == LINE_FLOATS:  # known widths make straight code
        shape = (LINE_FLOATS, value_pitch, pitch, LINE_FLOATS)
        num_missed: int = _read_strip(arrays, batch, lists, shape, copy_line)
    else:
        shape = (dim, value_pitch, pitch, width)
        num_missed = _read_strip(arrays, batch, lists, shape, copy_span)
    return num_missed


@uncounted
def _read_found(
    table: Table, keys: NDArray[np.uint64], num: int, out: NDArray[np.float32]
) -> None:
    """Copy the rows of missed keys that were looked for."""
    numbers, slots, values = table.arrays.missed[4], table.arrays.missed[5], table.values
    dim, value_pitch, _pitch, _first_state = table.layout
    for j in range(num):
        i, slot = numbers[j], slots[j]
        if slot < 0:
            _read_firsts(table, keys[i : i + 1], out, i * dim)
        else:
            copy_span(out, i * dim, values, slot * value_pitch, dim)


@uncounted
def pull_rows(
    table: Table, keys: NDArray[np.uint64], out: NDArray[np.float32], create: Any
) -> int:
    """Copy the value of each key to ``out``; return ``DONE`` or ``CROWDED``.

    ``out`` is flat. With ``create`` (a bool) new keys become rows, for which there must be
    room; without, they read as what they would begin with.
    """
    index, width = table.arrays, table.layout.first_state
    start, num_sought, num_found = NONE, NONE, NONE
    aim(index, keys, 0)
    ask_first(index, keys.size)
    while start < keys.size or num_sought or num_found:
        num_missed = _read_home(table, keys, start, out)
        _read_found(table, keys, num_found, out)
        num_absent = look_beyond(index, keys, start, num_sought, num_missed)
        num = num_sought + num_missed
        if create and num_absent and create_rows(table, keys, num) != DONE:
            return CROWDED
        num_sought, num_found = sort_out(index, num)
        ask_rows(table, num_found, width)
        start += STRIP
        aim(index, keys, start)
    return DONE
