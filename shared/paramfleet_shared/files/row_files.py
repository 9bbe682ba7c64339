"""Files of rows: ``ids`` int64 [n], sorted, each once, and ``rows`` float32 [n, D].

Exports and bases of streams have one for each sparse table.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["are_finite", "are_sorted", "checked_rows", "row_file_name"]

_PIECE = 1 << 20
_MAX_STEM = 150
"""Characters of a table's name in that of its file."""


def checked_rows(
    tensors: Mapping[str, NDArray[Any]], shape: tuple[int, int], *, verify: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return a table's ids int64 [n] and rows float32 [n, D].

    Args:
        tensors: Of the file.
        shape: n and D, as the manifest has them.
        verify: Whether to look at all numbers: the ids' order, and that rows are finite.

    Raises:
        KeyError: if one isn't there.
        ValueError: if one has another shape or dtype, the ids aren't sorted, or a value isn't
            finite.
    """
    ids, rows = tensors["ids"], tensors["rows"]
    if (ids.shape, rows.shape) != (shape[:1], shape):
        problem = (
            f"ids {list(ids.shape)} and rows {list(rows.shape)} have other shapes than in the "
            f"manifest, [{shape[0]}] and [{shape[0]}, {shape[1]}]"
        )
        raise ValueError(problem)
    if ids.dtype != np.int64 or rows.dtype != np.float32:
        raise ValueError("ids must be int64 and rows float32")
    if verify and not are_sorted(ids):
        raise ValueError("its ids aren't sorted, each once")
    if verify and not are_finite(rows):
        raise ValueError("its rows hold infinities or NaN")
    return ids, rows


def are_sorted(ids: NDArray[np.int64]) -> bool:
    """Return whether each id, int64 [n], is above the one before, looked at in pieces."""
    for start in range(0, len(ids), _PIECE):
        piece = ids[start : start + _PIECE + 1]
        if not (piece[1:] > piece[:-1]).all():
            return False
    return True


def are_finite(values: NDArray[np.float32]) -> bool:
    """Return whether all values, of any shape, are, looked at in pieces."""
    flat = values.reshape(-1)
    starts = range(0, len(flat), _PIECE)
    return all(bool(np.isfinite(flat[at : at + _PIECE]).all()) for at in starts)


def row_file_name(table: str, taken: set[str], *, kind: str = "rows") -> str:
    """Return the name of a table's file: no other's, on any file system.

    Args:
        table: Its name.
        taken: Names of other files of the folder, in small letters; the new one is added.
        kind: What the file has of the table.
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in table)
    stem = f"{kind}.{safe[:_MAX_STEM]}"
    name, number = f"{stem}.safetensors", 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem}.{number}.safetensors"
    taken.add(name.casefold())
    return name
