"""Shapes and types of the arrays that tables take."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError

__all__ = ["RowShapeError", "check_array"]


class RowShapeError(ContractError):
    """An array of ids, values or gradients has the wrong shape or type."""

    code = "contract.row_shape"
    table: str
    expected: str
    got: str
    sentence = "table {table!r}: expected {expected}, got {got}"


def check_array(
    array: NDArray[Any],
    dtype: type[np.generic],
    shape: tuple[int, ...],
    *,
    table: str,
    in_place: bool = False,
) -> None:
    """Compare an array with what a table takes; -1 in ``shape`` stands for any length.

    Args:
        array: What came.
        dtype: What it must hold.
        shape: And how long it must be.
        table: Named by the error.
        in_place: Whether a kernel writes to it, so that it can't be copied first.

    Raises:
        RowShapeError: if the type or the shape differs, or it can't be written in place.
    """
    lengths = array.shape
    fits = lengths == shape
    if not fits and len(lengths) == len(shape):
        fits = True
        for have, want in zip(lengths, shape, strict=True):
            fits &= want in {-1, have}
    writable = not in_place or array.flags.carray  # which is contiguous and aligned, too
    if array.dtype != dtype or not fits or not writable:
        wanted = ", ".join("any" if length == -1 else str(length) for length in shape)
        suffix = " contiguous and writable" if in_place else ""
        raise RowShapeError(
            table=table,
            expected=f"{np.dtype(dtype)} [{wanted}]{suffix}",
            got=f"{array.dtype} {list(array.shape)}" + ("" if writable else " not so"),
        )
