"""Narrowing rows to 16 bits with what was lost of former ones, in one pass over memory.

A strip of rows at a time is added up, narrowed and widened again while it is in the
nearest cache; what is lost goes back to where the last loss came from.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.codecs import (
    from_bfloat16,
    from_float16,
    to_bfloat16,
    to_float16,
)
from paramfleet_shared.tables.kernels.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.rows import gather, scatter

__all__ = ["feed_back_halves"]

STRIP_VALUES = 1 << 12
"""Floats narrowed at a time: sums and what arrives of them take 32 KiB."""


@inlined
def _add_up(
    left: NDArray[np.float32],
    slots: NDArray[np.int64],
    grads: NDArray[np.float32],
    total: NDArray[np.float32],
    dim: int,
) -> None:
    """Put the gradients and what is left of these rows into ``total``."""
    gather(left, dim, slots, total, dim)
    for i in range(total.size):
        total[i] += grads[i]


@inlined
def _keep_lost(
    left: NDArray[np.float32],
    slots: NDArray[np.int64],
    total: NDArray[np.float32],
    arriving: NDArray[np.float32],
    dim: int,
) -> None:
    """Put what doesn't arrive back to where the rest of these rows is kept."""
    for i in range(total.size):
        total[i] -= arriving[i]
    scatter(left, dim, slots, total, (0, dim))


@kernel
def feed_back_halves(
    left: NDArray[np.float32],
    slots: NDArray[np.int64],
    grads: NDArray[np.float32],
    out: NDArray[np.uint16],
    form: tuple[int, Any],
) -> None:
    """Narrow rows to 16 bits; all flat.

    Args:
        left: What is left of all rows.
        slots: Where in it the rows of ``grads`` are; no slot twice.
        grads: One row a slot.
        out: Filled: what travels.
        form: Width of a row, and whether to make float16 (a bool), else bfloat16.
    """
    dim, is_float16 = form
    num = max(1, STRIP_VALUES // dim)
    room, way = np.empty(num * dim, np.float32), np.empty(num * dim, np.float32)
    for start in range(0, slots.size, num):
        stop = min(start + num, slots.size)
        total, arriving = room[: (stop - start) * dim], way[: (stop - start) * dim]
        sent, some = out[start * dim : stop * dim], slots[start:stop]
        _add_up(left, some, grads[start * dim : stop * dim], total, dim)
        if is_float16:
            to_float16(total, total.view(np.uint32), sent)
            from_float16(sent, arriving, arriving.view(np.uint32))
        else:
            to_bfloat16(total.view(np.uint32), sent)
            from_bfloat16(sent, arriving.view(np.uint32))
        _keep_lost(left, some, total, arriving, dim)
