"""Rows between a table and a batch."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    LINE_LANES,
    load_float,
    load_lanes,
    load_line,
    prefetch,
    store_float,
    store_lanes,
    store_line,
)

__all__ = [
    "Layout",
    "choose_places",
    "copy_line",
    "copy_span",
    "gather",
    "prefetch_row",
    "scatter",
]

LINE_FLOATS = LINE_LANES
"""In a cache line."""

AHEAD = 64
"""Rows between the one worked on and the one prefetched."""


class Layout(NamedTuple):
    """How a row of a table lies in memory: its value, then its states."""

    dim: int
    """Numbers of a value, and of each state."""
    value_pitch: int
    """Numbers of the values' type from row to row."""
    pitch: int
    """Floats from row to row."""
    first_state: int
    """Floats from a row's beginning to its states."""


@inlined
def copy_span(target: Any, to: Any, source: Any, start: Any, count: Any) -> None:
    """Copy ``count`` numbers between flat offsets; into 16 bits they are rounded to nearest."""
    whole = count - count % LANES
    for j in range(0, whole, LANES):
        store_lanes(target, to + j, load_lanes(source, start + j))
    for j in range(whole, count):
        store_float(target, to + j, load_float(source, start + j))


@inlined
def copy_line(target: Any, to: Any, source: Any, start: Any, _count: Any) -> None:
    """As ``copy_span`` of ``LINE_FLOATS`` numbers."""
    store_line(target, to, load_line(source, start))


@inlined
def prefetch_row(array: Any, start: Any, width: Any) -> None:
    """Bring ``width`` floats near.

    Rows of whole cache lines begin on one; others may end on one more.
    """
    for j in range(0, width, LINE_FLOATS):
        prefetch(array, start + j)
    if width % LINE_FLOATS:
        prefetch(array, start + width - 1)


@kernel
def gather(
    table: NDArray[np.float32],
    pitch: int,
    slots: NDArray[np.int64],
    rows: NDArray[np.float32],
    width: int,
) -> int:
    """Copy the first ``width`` floats of the rows at ``slots``; return how many slots are -1.

    ``table`` and ``rows`` are flat, of ``pitch`` and ``width`` floats a row. A row of
    slot -1 is left as it is.
    """
    missing = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, max(slots[i + AHEAD], 0) * pitch, width)
        if slots[i] >= 0:
            copy_span(rows, i * width, table, slots[i] * pitch, width)
        else:
            missing += 1
    return missing


@kernel
def scatter(
    table: NDArray[np.float32],
    pitch: int,
    slots: NDArray[np.int64],
    rows: NDArray[np.float32],
    columns: tuple[int, int],
) -> None:
    """Put rows into ``columns`` = (first, end) of the rows at ``slots``, the later one last.

    ``table`` and ``rows`` are flat, of ``pitch`` and ``end - first`` floats a row.
    """
    first, end = columns
    width = end - first
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(table, slots[i + AHEAD] * pitch + first, width)
        copy_span(table, slots[i] * pitch + first, rows, i * width, width)


@kernel
def choose_places(
    places: NDArray[np.int64],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    kept: tuple[int, int],
    chosen: NDArray[np.int64],
) -> int:
    """List the places that an image has to keep, each once; return how many.

    Args:
        places: Of rows that are about to change; -1 for none.
        numbers: Of each place of the image: which of those kept it is, from 1; 0 for none.
            Those listed get the next numbers.
        is_new: Of each place, whether it had no row when the image was taken.
        kept: The first place that isn't read yet, and how many are kept.
        chosen: Where they are listed, as long as ``places``.
    """
    first, before = kept
    num = 0
    for i in range(places.size):
        if i + AHEAD < places.size:
            prefetch(numbers, places[i + AHEAD])
        place = places[i]
        if first <= place < numbers.size and numbers[place] == 0 and not is_new[place]:
            chosen[num] = place
            num += 1
            numbers[place] = before + num
    return num
