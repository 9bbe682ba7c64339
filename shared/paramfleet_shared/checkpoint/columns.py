"""Which columns of optimizer state a file of a checkpoint holds, by their names.

A file has them as one block, [n, W] of rows and [S, n] of a dense table. Who reads it gets the
columns that the rule has now: one that was not saved begins anew, and one that the rule
doesn't have is dropped.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.files.documents import whole
from paramfleet_shared.tables.rows.layout import ColumnSpec, RowLayout
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Columns", "ColumnsDiffer", "arranged", "columns_of", "differing", "read_columns"]

Columns = tuple[tuple[str, int], ...]
"""Names and widths, in the order of the block."""


class ColumnsDiffer(NamedTuple):
    """A table of a checkpoint whose files have other columns than its rule has now."""

    table: str
    anew: tuple[str, ...]
    """Columns that were not saved."""
    dropped: tuple[str, ...]
    """Columns that nobody goes on with."""


def columns_of(spec: TableSpec) -> Columns:
    """Return the columns of state that a table has now; those of a dense one have width 1."""
    return tuple((each.name, each.width) for each in RowLayout.of(spec).states.columns)


def read_columns(wire: Sequence[Sequence[Any]]) -> Columns:
    """Return columns that a manifest names.

    Raises:
        ValueError: if a width is no number, or a name is there twice.
    """
    columns = tuple((str(name), whole(width, "width")) for name, width in wire)
    if len(dict(columns)) != len(columns):
        raise ValueError("a column is named twice")
    return columns


def differing(spec: TableSpec, saved: Iterable[Columns]) -> ColumnsDiffer | None:
    """Return how the columns of a table's files differ from those that it has now.

    Raises:
        ValueError: if a column has another width.
    """
    now = dict(columns_of(spec))
    anew: set[str] = set()
    dropped: set[str] = set()
    for columns in map(dict, saved):
        anew |= now.keys() - columns.keys()
        dropped |= columns.keys() - now.keys()
        for name in now.keys() & columns.keys():
            if columns[name] != now[name]:
                message = (
                    f"column {name!r} of table {spec.name!r} has {columns[name]} numbers a "
                    f"row, but {spec.optimizer.rule} keeps {now[name]}: load it by the version "
                    "that saved it"
                )
                raise ValueError(message)
    if not anew and not dropped:
        return None
    return ColumnsDiffer(spec.name, tuple(sorted(anew)), tuple(sorted(dropped)))


def arranged(
    spec: TableSpec, columns: Columns, states: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return saved states in the columns that a table has now.

    Args:
        spec: The table, with the rule that had trained it.
        columns: As they were saved.
        states: float32 [n, W], or [S, n] of a dense table.
    """
    if columns == columns_of(spec):
        return states
    rows = states if spec.kind == "sparse" else states.T
    had = RowLayout(tuple(ColumnSpec(name, width) for name, width in columns))
    layout = RowLayout.of(spec).states
    new = layout.new_rows(len(rows))
    for name in layout.spans.keys() & had.spans.keys():
        new[:, layout.spans[name]] = rows[:, had.spans[name]]
    return new if spec.kind == "sparse" else new.T.copy()
