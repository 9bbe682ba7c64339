"""Rows of whole numbers as tensors of a message, and back."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.net.wire.message import MalformedMessageError, Message

__all__ = ["array_of", "rows_of", "table_of"]


def table_of(rows: Iterable[Sequence[int]], width: int) -> NDArray[np.int64]:
    """Return rows of whole numbers, each of ``width``, as int64 [n, width]."""
    return np.array([*rows], np.int64).reshape(-1, width)


def rows_of(message: Message, name: str, width: int) -> list[list[int]]:
    """Return the rows that ``table_of`` made a tensor of.

    Raises:
        MalformedMessageError: if there is no such tensor.
    """
    found: list[list[int]] = array_of(message, name, "int64", (None, width)).tolist()
    return found


def array_of(
    message: Message, name: str, dtype: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return a tensor of a known dtype and shape (None: any length).

    Raises:
        MalformedMessageError: if there is none of that name, or it has another dtype or shape.
    """
    array = message.tensors.get(name)
    fits = array is not None and array.dtype == dtype and array.ndim == len(shape)
    if array is None or not fits:
        rule = f"must be {dtype} with {len(shape)} dimensions"
        raise MalformedMessageError(where=f"tensor {name!r}", rule=rule)
    for want, have in zip(shape, array.shape, strict=True):
        if want is not None and want != have:
            raise MalformedMessageError(
                where=f"tensor {name!r}", rule=f"must have shape {shape}, not {array.shape}"
            )
    return array
