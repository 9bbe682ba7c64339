"""What all files of a stream have in common: its tables, and its dense parameters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.records import StreamTable, TableChange
from paramfleet_shared.files.row_files import are_finite, are_sorted

__all__ = ["MAX_DENSE_NAME", "StreamSchema", "checked_dense", "checked_table"]

MAX_DENSE_NAME = 1000
"""Characters of a dense parameter's name."""


class StreamSchema(NamedTuple):
    """The tables and dense parameters of a stream, the same from its begin to its end."""

    tables: Mapping[str, StreamTable]
    dense: Mapping[str, Sequence[int]]
    """Shapes, by name."""

    @property
    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each table's description."""
        return {name: table.digest for name, table in self.tables.items()}


def checked_table(change: TableChange, dim: int) -> TableChange:
    """Return a table's change if it is as it must be in a file.

    Raises:
        ValueError: if arrays have other shapes or dtypes, ids aren't sorted, each once, an id
            is in both lists, or a row isn't finite.
    """
    ids, rows, removed = change
    if (ids.ndim, removed.ndim) != (1, 1) or rows.shape != (len(ids), dim):
        rule = (
            f"ids {list(ids.shape)}, rows {list(rows.shape)} and removed {list(removed.shape)} "
            f"must be [n], [n, {dim}] and [m]"
        )
        raise ValueError(rule)
    if (ids.dtype.str, rows.dtype.str, removed.dtype.str) != ("<i8", "<f4", "<i8"):
        raise ValueError("ids and removed must be int64, and rows float32")
    if not (are_sorted(ids) and are_sorted(removed)):
        raise ValueError("ids and removed must be sorted, each once")
    if removed.size and ids.size:
        places = np.searchsorted(ids, removed)
        places[places == ids.size] = 0
        if bool((ids[places] == removed).any()):
            raise ValueError("an id has a new row, and is removed, too")
    if not are_finite(rows):
        raise ValueError("rows must be finite: they hold infinities or NaN")
    return change


def checked_dense(
    dense: Mapping[str, NDArray[np.float32]], schema: StreamSchema
) -> Mapping[str, NDArray[np.float32]]:
    """Return dense parameters if they are those of a stream, or some of them.

    Raises:
        ValueError: if one isn't, has another shape or dtype, or isn't finite.
    """
    for name, values in dense.items():
        if name not in schema.dense:
            rule = f"{name!r} is no parameter of the stream: begin another one"
            raise ValueError(rule)
        if values.dtype != np.float32 or list(values.shape) != list(schema.dense[name]):
            rule = f"{name!r} must be float32 {list(schema.dense[name])}, as in the base"
            raise ValueError(rule)
        if not are_finite(values):
            rule = f"{name!r} must be finite: it holds infinities or NaN"
            raise ValueError(rule)
    return dense
