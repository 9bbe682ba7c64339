"""Reading rows: from ids to values, a group of a batch at a time (see ``seek``)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel, uncounted
from paramfleet_shared.tables.kernels.firsts import Firsts, fill_firsts, fill_states
from paramfleet_shared.tables.kernels.index import DONE, FREE, GROUP, USED, Index
from paramfleet_shared.tables.kernels.rows import (
    AHEAD,
    LINE_FLOATS,
    Layout,
    copy_line,
    copy_span,
    prefetch_row,
)
from paramfleet_shared.tables.kernels.seek import find_slots, list_missed

__all__ = ["Table", "fill_new_rows", "find_rows", "pull_rows"]


class Table(NamedTuple):
    """The rows of a shard, as kernels that create them take them."""

    arrays: Index
    firsts: Firsts
    values: NDArray[Any]
    """Flat, row by row: float32, or 16 bits each (see ``halves``)."""
    floats: NDArray[np.float32]
    """The same memory as floats, for the states."""
    layout: Layout
    states: NDArray[np.float32]
    """[W]: what stands beside the value of a new row."""
    first: NDArray[Any]
    """[dim]: room for a row that isn't kept, rounded as if it were."""
    total: NDArray[np.float32]
    """[dim]: room for a sum."""


@uncounted
def _fill_rows(table: Table, start: Any, stop: Any) -> None:
    """Give the rows of slots their first values and state."""
    index, firsts, values, floats, layout, states, _first, _total = table
    dim, value_pitch, pitch, first_state = layout
    new = values[start * value_pitch : stop * value_pitch]
    fill_firsts(firsts, index.ids[start:stop], new, (dim, value_pitch))
    if first_state < pitch:
        fill_states(states, floats[start * pitch : stop * pitch], first_state, pitch)


@uncounted
def fill_new_rows(table: Table, used: int, free: int) -> None:
    """Give new rows their first values and state.

    New since ``used`` slots had been used ever, of which ``free`` were free again.
    """
    counts, stack = table.arrays.counts, table.arrays.free
    if counts[USED] > used:
        _fill_rows(table, used, counts[USED])
    for place in range(counts[FREE], free):
        slot = np.int64(stack[place])
        _fill_rows(table, slot, slot + 1)


@kernel
def find_rows(
    table: Table, keys: NDArray[np.uint64], create: Any, known: NDArray[np.int64]
) -> int:
    """Put the slots of a group's keys to the index's; return ``DONE`` or ``CROWDED``.

    With ``create`` (a bool) new keys become rows, for which there must be room. ``known`` are
    the keys' slots if the caller has found them all, else empty.
    """
    index = table.arrays
    if known.size:
        for j in range(keys.size):
            index.slots[j] = known[j]
        return DONE
    used, free = index.counts[USED], index.counts[FREE]
    outcome = find_slots(index, keys, index.slots[: keys.size], create)
    if index.counts[USED] > used or index.counts[FREE] < free:
        fill_new_rows(table, used, free)
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
def _copy_group(arrays: Any, num: Any, start: Any, shape: Any, copy: Any) -> None:
    """Copy the rows of a group to ``out`` from row ``start`` on.

    ``arrays`` = (slots, floats, values, out), ``shape`` = (dim, value pitch, pitch, width),
    ``copy`` is ``copy_span`` or its like.
    """
    slots, floats, values, out = arrays
    dim, value_pitch, pitch, width = shape
    for i in range(num):
        prefetch_row(floats, slots[i + AHEAD] * pitch, width)
        copy(out, (start + i) * dim, values, slots[i] * value_pitch, dim)


@uncounted
def _read_group(table: Table, num: int, start: int, out: NDArray[np.float32]) -> None:
    """Call ``_copy_group``; a function of its own, so that it has registers enough."""
    arrays = (table.arrays.slots, table.floats, table.values, out)
    dim, value_pitch, pitch, width = table.layout
    if dim == LINE_FLOATS and width == LINE_FLOATS:  # known widths make straight code
        shape = (LINE_FLOATS, value_pitch, pitch, LINE_FLOATS)
        _copy_group(arrays, num, start, shape, copy_line)
    else:
        shape = (dim, value_pitch, pitch, width)
        _copy_group(arrays, num, start, shape, copy_span)


@uncounted
def pull_rows(
    table: Table,
    keys: NDArray[np.uint64],
    out: NDArray[np.float32],
    create: Any,
    known: NDArray[np.int64],
) -> int:
    """Copy the value of each key to ``out``; return ``DONE`` or ``CROWDED``.

    ``out`` is flat. With ``create`` (a bool) new keys become rows, for which there must be
    room; without, they read as what they would begin with. ``known`` as of ``find_rows``, of
    all keys.
    """
    slots, absent, dim = table.arrays.slots, table.arrays.missed, table.layout.dim
    for start in range(0, keys.size, GROUP):
        some = keys[start : start + GROUP]
        outcome = find_rows(table, some, create, known[start : start + GROUP])
        if outcome != DONE:
            return outcome
        num_absent = list_missed(absent, slots[: some.size])
        for j in range(num_absent):  # any row will do: so none takes a branch
            slots[absent[j]] = 0
        _read_group(table, some.size, start, out)
        for j in range(num_absent):
            i = absent[j]
            _read_firsts(table, some[i : i + 1], out, (start + i) * dim)
    return DONE
