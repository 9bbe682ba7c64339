"""The rows of a checkpoint's tables, some at a time: no table is in memory as a whole."""

from collections.abc import Iterator
from pathlib import Path

from paramfleet_shared.checkpoint.columns import arranged, columns_of
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    FilePart,
    Manifest,
    SavedFile,
    map_part,
)
from paramfleet_shared.files.tensorfile import release_pages
from paramfleet_shared.tables.rows.states import check_rows
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["file_pieces", "sparse_tables", "table_pieces"]

PIECE_BYTES = 16 << 20
"""Of rows, with their states, that are in memory at a time."""


def sparse_tables(manifest: Manifest) -> list[TableSpec]:
    """Return the sparse tables of a checkpoint."""
    return [each.spec for each in manifest.tables if each.spec.kind == "sparse"]


def table_pieces(parts: Path, manifest: Manifest, spec: TableSpec) -> Iterator[FilePart]:
    """Yield the rows of a sparse table, in no order, each with its states.

    Arrays are views of files that are mapped, one after the other.

    Args:
        parts: The checkpoint's folder.
        manifest: Its manifest.
        spec: The table.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved, or has other rows than the
            manifest says.
    """
    for file in manifest.files:
        if file.table == spec.name:
            yield from file_pieces(parts, file, spec, piece_bytes=PIECE_BYTES)


def file_pieces(
    parts: Path, file: SavedFile, spec: TableSpec, *, piece_bytes: int
) -> Iterator[FilePart]:
    """Yield the rows of one file, as ``table_pieces``; what was read leaves the memory.

    Raises:
        CheckpointDamagedError: as ``table_pieces``.
    """
    part = map_part(parts, file, spec)
    ids, columns = part.ids, columns_of(spec) if file.columns is None else file.columns
    assert ids is not None, "rows have ids"
    step = max(1, piece_bytes // (8 + 4 * (spec.dim + part.states.shape[1])))
    for start in range(0, part.num_rows, step):
        some = slice(start, start + step)
        values, states = part.values[some], arranged(spec, columns, part.states[some])
        if wrong := check_rows(spec.optimizer, values, states):
            raise CheckpointDamagedError(path=str(parts / file.name), reason=wrong)
        yield FilePart(values=values, states=states, ids=ids[some])
        release_pages(ids)
