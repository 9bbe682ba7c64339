"""What a writer takes: brought into the form of files, or refused with the reason.

Shape legend: n = rows, D = row width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.errors import StreamChangeError
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.stored.head import moment_of
from paramfleet_shared.deltas.stored.schema import (
    MAX_DENSE_NAME,
    StreamSchema,
    checked_dense,
    checked_table,
)
from paramfleet_shared.files.row_files import are_finite, are_sorted
from paramfleet_shared.values.sorting import each_once

__all__ = ["checked_change", "checked_moment", "checked_parameters", "checked_piece"]


def checked_change(folder: Path, change: Change, schema: StreamSchema) -> Change:
    """Return a change as files have it: ids sorted, each once; empty tables are left out.

    Raises:
        StreamChangeError: if it can't be a part of the stream.
    """
    tables = {}
    for name, table in change.tables.items():
        what = f"table {name!r}"
        if name not in schema.tables:
            _refuse(folder, what, "the stream's bases have no such table: begin another one")
        try:
            found = checked_table(_sorted(table), schema.tables[name].dim)
        except (TypeError, ValueError, IndexError) as error:
            _refuse(folder, what, str(error))
        if found.ids.size or found.removed.size:
            tables[name] = found
    moment = checked_moment(folder, change.moment)
    dense = _dense(folder, change.dense, schema)
    return Change(moment=moment, tables=tables, dense=dense)


def checked_moment(folder: Path, moment: float) -> float:
    """Return a moment: seconds since 1970.

    Raises:
        StreamChangeError: if it is none.
    """
    try:
        return moment_of(float(moment))
    except ValueError as error:
        _refuse(folder, "a moment", str(error))


def checked_parameters(
    folder: Path,
    tables: Sequence[StreamTable],
    dense: Mapping[str, NDArray[np.float32]],
    schema: StreamSchema,
) -> Mapping[str, NDArray[np.float32]]:
    """Return the dense parameters of a base, if its tables have different names.

    Raises:
        StreamChangeError: if a name comes twice, or is none, or a parameter isn't float32 or
            isn't finite.
    """
    if len(schema.tables) != len(tables):
        names = [table.name for table in tables]
        name = next(name for name in names if names.count(name) > 1)
        _refuse(folder, f"table {name!r}", "comes twice")
    for name in dense:
        if not 1 <= len(name) <= MAX_DENSE_NAME:
            rule = f"names must have 1 to {MAX_DENSE_NAME} characters"
            _refuse(folder, f"parameter {name!r}", rule)
    return _dense(folder, dense, schema)


def checked_piece(
    folder: Path,
    schema: StreamSchema,
    name: str,
    ids: NDArray[np.int64],
    rows: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return rows float32 [n, D] of ids int64 [n], which may be in any order.

    Raises:
        StreamChangeError: if there is no such table, or shapes, dtypes or values are wrong.
    """
    what = f"table {name!r}"
    if name not in schema.tables:
        _refuse(folder, what, "comes with rows, and isn't among the tables")
    dim = schema.tables[name].dim
    if ids.ndim != 1 or rows.shape != (len(ids), dim):
        rule = f"ids {list(ids.shape)} and rows {list(rows.shape)} must be [n] and [n, {dim}]"
        _refuse(folder, what, rule)
    if (ids.dtype.str, rows.dtype.str) != ("<i8", "<f4"):
        _refuse(folder, what, "ids must be int64, and rows float32")
    if not are_finite(np.ascontiguousarray(rows)):
        _refuse(folder, what, "rows must be finite: they hold infinities or NaN")
    return ids, rows


def _dense(
    folder: Path, dense: Mapping[str, NDArray[np.float32]], schema: StreamSchema
) -> Mapping[str, NDArray[np.float32]]:
    """Return dense parameters, each in one piece of memory.

    Raises:
        StreamChangeError: if one can't be a part of the stream.
    """
    try:
        arrays = {name: np.asarray(values, order="C") for name, values in dense.items()}
        return checked_dense(arrays, schema)
    except ValueError as error:
        _refuse(folder, "dense parameters", str(error))


def _sorted(table: TableChange) -> TableChange:
    """Return a table's change with sorted ids, each once, the last row of each.

    Raises:
        IndexError: if arrays have other shapes than they must have.
        TypeError: the same.
        ValueError: the same.
    """
    ids, rows, removed = table
    if ids.shape != rows.shape[:1]:
        rule = f"ids {list(ids.shape)} and rows {list(rows.shape)} must have one length"
        raise ValueError(rule)
    if not are_sorted(ids):
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        counts = np.ones(len(ids), np.bool_)
        counts[:-1] = ids[1:] != ids[:-1]
        ids, rows = ids[counts], rows[order[counts]]
    if not are_sorted(removed):
        removed = each_once(removed)
    return TableChange(ids, np.ascontiguousarray(rows), removed)


def _refuse(folder: Path, what: str, rule: str) -> NoReturn:
    """Refuse a part of a stream.

    Raises:
        StreamChangeError: always.
    """
    raise StreamChangeError(path=str(folder), what=what, rule=rule)
