"""Files of rows: ``ids`` int64 [n], sorted, each once, and ``rows`` float32 [n, D].

Exports and bases of streams have one for each sparse table.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.values.texts import shown

__all__ = [
    "are_finite",
    "are_sorted",
    "checked_rows",
    "part_from_wire",
    "part_of_row",
    "row_file_name",
]

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


def part_of_row(values: range, dim: int) -> tuple[int, int] | None:
    """Return a part of a row as a manifest says it: (first, end); None for all or nothing.

    Args:
        values: Of a row.
        dim: How many it has.
    """
    return None if len(values) in {0, dim} else (values.start, values.stop)


def part_from_wire(wire: Any, dim: int) -> tuple[int, int] | None:
    """Read what ``part_of_row`` returned.

    Raises:
        ValueError: if it is no part of a row of ``dim`` values.
    """
    if wire is None:
        return None
    is_pair = isinstance(wire, list | tuple) and [type(each) for each in wire] == [int, int]
    if not is_pair or not 0 <= wire[0] < wire[1] <= dim:
        rule = f"a part of a row must be two numbers from 0 to {dim}: {shown(wire)}"
        raise ValueError(rule)
    return wire[0], wire[1]


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
