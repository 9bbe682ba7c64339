"""Rows that wait to be sent to one reader: a queue in which each row stands once.

A row's mark says since when it waits: 0 if it doesn't, else the number of the first
reply that can hold its newest change. ``queue`` holds row numbers from the
longest-waiting on; ``marks`` are by row number.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel
from paramfleet_shared.tables.kernels.basics.lanes import prefetch

__all__ = ["append_waiting", "forget_reported"]

AHEAD = 32
"""Rows between the one worked on and the one whose mark is prefetched."""


@kernel
def append_waiting(
    rows: NDArray[np.int64],
    marks: NDArray[np.uint32],
    queue: NDArray[np.uint32],
    end: int,
    reply: np.uint32,
) -> int:
    """Mark rows with ``reply``, let those that didn't wait do so; return the queue's end."""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(marks, rows[i + AHEAD])
        row = rows[i]
        if marks[row] == 0:
            queue[end] = row
            end += 1
        marks[row] = reply
    return end


@kernel
def forget_reported(
    queue: NDArray[np.uint32],
    places: tuple[int, int, int],
    marks: NDArray[np.uint32],
    reply: np.uint32,
) -> int:
    """Let rows of ``reply`` wait no more; return the queue's new end.

    ``places`` = (first, end) of the rows in the queue that it held, and the queue's end.
    Those that changed after it queue up again.
    """
    first, stop, end = places
    for place in range(first, stop):
        row = np.int64(queue[place])
        if marks[row] <= reply:
            marks[row] = 0
        else:
            queue[end] = queue[place]
            end += 1
    return end
