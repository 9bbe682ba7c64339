"""Rows by slot: what a worker needs to keep rows of its own.

A ``SlotIndex`` numbers ids in order of creation, and gives the numbers of those that were
removed to new ones; columns of rows beside it
(``RowColumn``) hold the values, the last pulled ones, optimizer state, whatever the
owner keeps by slot.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels import rows as row_kernels
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.firsts import fill_firsts, firsts_of
from paramfleet_shared.tables.memory.reservation import RowColumn
from paramfleet_shared.tables.memory.shapes import RowShapeError, check_array
from paramfleet_shared.tables.memory.slot_index import Growth, Mark, SlotIndex
from paramfleet_shared.tables.rows.layout import STORAGE_TYPES
from paramfleet_shared.tables.spec import TableSpec

__all__ = [
    "Growth",
    "Mark",
    "RowColumn",
    "RowShapeError",
    "SlotIndex",
    "as_floats",
    "check_array",
    "gather_rows",
    "initial_rows",
    "scatter_rows",
]


def initial_rows(spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the first value of each id's row: float32 [n, dim], as a pserver makes it."""
    check_array(ids, np.int64, (-1,), table=spec.name)
    keys = as_input(ids, np.int64).view(np.uint64)
    rows = np.empty((keys.size, spec.dim), STORAGE_TYPES[spec.storage])
    fill_firsts(firsts_of(spec), keys, rows.reshape(-1), (spec.dim, spec.dim))
    return rows if spec.storage == "float32" else as_floats(rows)


def as_floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return a copy of what a storage holds (see ``STORAGE_TYPES``) as float32."""
    if values.dtype == np.int16:
        return values.copy().view(np.float16).astype(np.float32)
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.copy()


def gather_rows(
    array: NDArray[np.float32], slots: NDArray[np.int64], out: NDArray[np.float32]
) -> int:
    """Copy ``array[slots]`` to ``out``, without the GIL; return how many slots are -1.

    Args:
        array: float32 [rows, width], contiguous.
        slots: int64 [n], below ``rows``; the row of a slot -1 is left as it is in ``out``.
        out: float32 [n, width], contiguous.

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    check_array(array, np.float32, (-1, -1), table="")
    check_array(slots, np.int64, (-1,), table="")
    width = array.shape[1]
    check_array(out, np.float32, (slots.size, width), table="", in_place=True)
    flat = as_input(array, np.float32).reshape(-1)
    return int(
        row_kernels.gather(flat, width, as_input(slots, np.int64), out.reshape(-1), width)
    )


def scatter_rows(
    array: NDArray[np.float32], slots: NDArray[np.int64], rows: NDArray[np.float32]
) -> None:
    """Put ``rows`` to ``array[slots]``, without the GIL; of two for one slot, the later stays.

    Args:
        array: float32 [rows, width], contiguous.
        slots: int64 [n], from 0 and below ``rows``.
        rows: float32 [n, width].

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    check_array(array, np.float32, (-1, -1), table="", in_place=True)
    check_array(slots, np.int64, (-1,), table="")
    width = array.shape[1]
    check_array(rows, np.float32, (slots.size, width), table="")
    flat = as_input(rows, np.float32).reshape(-1)
    row_kernels.scatter(array.reshape(-1), width, as_input(slots, np.int64), flat, (0, width))
