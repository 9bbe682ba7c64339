"""A base of this process's own: what changed since the base, merged with it into a file.

The file has no name: it is gone with the process, however that ends.

Shape legend: n = rows of the former base, m = changed ids, N = rows of the new one, D = width.
"""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_serving.store.base import BaseRows
from paramfleet_serving.store.model import Model
from paramfleet_serving.store.overlay import IN_BASE, REMOVED
from paramfleet_serving.store.table import ServedTable

__all__ = ["merged_model"]

PIECE_ROWS = 1 << 16
"""Rows of the former base that are merged at a time."""


def merged_model(model: Model, folder: Path) -> Model:
    """Return the same version of a model, with nothing but a base.

    May be called on another thread while no change is applied to the model.

    Args:
        model: Of which it is the whole newest version.
        folder: Of a disk with room for all rows.

    Raises:
        OSError: if the system refuses, as on a full disk.
    """
    tables = {
        name: ServedTable(table.facts, _merged(table, folder))
        for name, table in model.tables.items()
    }
    merged = Model(model.stream, model.number, model.moment, tables, model.dense)
    merged.dense_number = model.dense_number
    return merged


class _Changed(NamedTuple):
    """What changed, by id."""

    ids: NDArray[np.int64]
    """int64 [m], sorted."""
    places: NDArray[np.int64]
    """int64 [m]: above 0 that of a row, or ``REMOVED``."""


def _merged(table: ServedTable, folder: Path) -> BaseRows:
    """Merge one table; raises as ``merged_model``."""
    if not table.overlay.num_rows:
        return table.base
    ids, places = table.overlay.content()
    is_changed = places != IN_BASE
    changed = _Changed(ids[is_changed], places[is_changed])
    base, dim = table.base, table.facts.dim
    _, is_there = base.find(changed.ids)
    is_gone = changed.places == REMOVED
    count = len(base.ids) + int((~is_there & ~is_gone).sum()) - int((is_there & is_gone).sum())
    new_ids, new_rows = _new_file(count, dim, folder)
    done = 0
    for start in range(0, max(1, len(base.ids)), PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        part = _part_of(changed, base.ids, piece)
        got_ids, got_rows = _merge_piece(table, piece, part)
        new_ids[done : done + len(got_ids)] = got_ids
        new_rows[done : done + len(got_ids)] = got_rows
        done += len(got_ids)
    assert done == count, "counted before"
    for array in (new_ids, new_rows):
        array.flags.writeable = False
    return BaseRows(new_ids, new_rows)


def _part_of(changed: _Changed, ids: NDArray[np.int64], piece: slice) -> _Changed:
    """Return what changed from a piece's first id to the next piece's first one."""
    first = 0 if piece.start == 0 else int(np.searchsorted(changed.ids, ids[piece.start]))
    is_last = piece.stop >= len(ids)
    end = len(changed.ids) if is_last else int(np.searchsorted(changed.ids, ids[piece.stop]))
    return _Changed(changed.ids[first:end], changed.places[first:end])


def _merge_piece(
    table: ServedTable, piece: slice, changed: _Changed
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return ids and rows of a piece with what changed in it."""
    ids, rows = table.base.ids[piece], table.base.rows[piece]
    if not len(changed.ids):
        return ids, rows
    stays = ~np.isin(ids, changed.ids, assume_unique=True)
    comes = changed.places > 0
    all_ids = np.concatenate([ids[stays], changed.ids[comes]])
    all_rows = np.concatenate([rows[stays], table.overlay.rows_at(changed.places[comes])])
    order = np.argsort(all_ids, kind="stable")
    return all_ids[order], all_rows[order]


def _new_file(
    count: int, dim: int, folder: Path
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return ids [N] and rows [N, D] of a new file without a name.

    Raises:
        OSError: if there is no room for it.
    """
    id_bytes, row_bytes = 8 * count, 4 * count * dim
    if not count:
        return np.empty(0, np.int64), np.empty((0, dim), np.float32)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, id_bytes + row_bytes)  # else a full disk kills
        content = np.memmap(file, np.uint8, "r+")
    ids = np.frombuffer(content, np.int64, count)
    rows = np.frombuffer(content, np.float32, count * dim, id_bytes)
    return ids, rows.reshape(count, dim)
