"""Rows copied out of pieces of a log."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import kernel

__all__ = ["copy_rows"]


@kernel
def copy_rows(
    halves: NDArray[np.uint32],
    starts: NDArray[np.int64],
    numbers: NDArray[np.int64],
    out: NDArray[np.uint32],
) -> None:
    """Copy the row that begins at word ``starts[i]`` to row ``numbers[i]`` of ``out``."""
    pitch = out.shape[1]
    for i in range(starts.size):
        for c in range(pitch):
            out[numbers[i], c] = halves[starts[i] + c]
