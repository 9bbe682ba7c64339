"""The files of ``fleet.save_inference_model``: rows by table, and the manifest."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.serving.files import describe_file
from paramfleet.serving.manifest import (
    MODEL,
    ExportedTable,
    Release,
    write_export_manifest,
)
from paramfleet.serving.unknown import Policy
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    read_part,
    read_removed,
    sync_directory,
)
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import row_file_name
from paramfleet_shared.files.tensorfile import write_tensors
from paramfleet_shared.tables.rows.choosing import delta_scores
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Held", "Pick", "Picked", "finish_export", "picked_of", "read_tables", "write_rows"]

# Shape legend: n and m are numbers of rows.


class Held(NamedTuple):
    """What an export has of the ``delta_score`` of a table's rows."""

    table: str
    ids: NDArray[np.int64]
    """[n]"""
    amounts: NDArray[np.float32]
    """[n]"""


class Picked(NamedTuple):
    """What an export is to hold of a table."""

    part: FilePart
    removed: NDArray[np.int64]
    """Ids of rows that were removed since the export before, of a delta. [m]"""


Pick = Callable[[TableSpec, FilePart], Picked]


def read_tables(parts: Path, manifest: Manifest) -> Iterator[tuple[TableSpec, FilePart]]:
    """Yield each sparse table of a checkpoint with its rows, in no order.

    Args:
        parts: Its folder.
        manifest: Its manifest.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
    """
    for table in manifest.tables:
        spec = table.spec
        if spec.kind != "sparse":
            continue
        read = [read_part(parts, f, spec) for f in manifest.files if f.table == spec.name]
        ids = [part.ids for part in read if part.ids is not None]
        width = read[0].states.shape[1] if read else RowLayout.of(spec).states.pitch
        yield (
            spec,
            FilePart(
                ids=np.concatenate([np.empty(0, np.int64), *ids]),
                values=np.concatenate(
                    [np.empty((0, spec.dim), np.float32), *(part.values for part in read)]
                ),
                states=np.concatenate(
                    [np.empty((0, width), np.float32), *(part.states for part in read)]
                ),
            ),
        )


def picked_of(parts: Path, manifest: Manifest) -> Pick:
    """Return what picks all rows of a checkpoint, and what it says was removed.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved; by what it returns.
    """

    def pick(spec: TableSpec, part: FilePart) -> Picked:
        files = () if manifest.increment is None else manifest.increment.removed
        removed = [read_removed(parts, file) for file in files if file.table == spec.name]
        return Picked(part, np.concatenate([np.empty(0, np.int64), *removed]))

    return pick


def write_rows(
    parts: Path,
    manifest: Manifest,
    target: Path,
    unknown: Mapping[str, Policy | list[float]],
    pick: Pick,
) -> tuple[list[ExportedTable], list[Held]]:
    """Write each sparse table's ids and rows as one file, sorted by id.

    Args:
        parts: A whole checkpoint, or the rows of it that are to be exported.
        manifest: Its manifest.
        target: The folder to write to.
        unknown: What ids without a row shall read, by table; ``"initial"`` in others.
        pick: Says what is exported of a table.

    Returns:
        The tables, and what they have of rows with an accessor.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
        OSError: if the system refuses.
    """
    taken: set[str] = set()
    tables: list[ExportedTable] = []
    held: list[Held] = []
    for spec, whole in read_tables(parts, manifest):
        part, removed = pick(spec, whole)
        ids = part.ids
        assert ids is not None, "rows have ids"
        if spec.optimizer.num_counts:
            held.append(Held(spec.name, ids, delta_scores(spec, part.states)))
        order = np.argsort(ids, kind="stable")
        name = row_file_name(spec.name, taken)
        both: dict[str, NDArray[Any]] = {"ids": ids[order], "rows": part.values[order]}
        written = write_tensors(target / name, both, {"table": spec.name})
        file = ListedFile(name=name, bytes=written.num_bytes, sha256=written.sha256)
        gone = None
        if len(removed):
            name = row_file_name(spec.name, taken, kind="removed")
            written = write_tensors(
                target / name, {"ids": np.sort(removed)}, {"table": spec.name}
            )
            gone = ListedFile(name=name, bytes=written.num_bytes, sha256=written.sha256)
        policy = unknown.get(spec.name, "initial")
        table = ExportedTable.of(spec, rows=len(ids), unknown=policy, file=file, removed=gone)
        tables.append(table)
    return tables, held


def finish_export(
    folder: Path, tables: list[ExportedTable], release: Release | None = None
) -> None:
    """Write the manifest, when all other files are there.

    Args:
        folder: The export's.
        tables: What it has.
        release: What it is of a base and deltas; None for an export of all rows.

    Raises:
        OSError: if the system refuses.
        CheckpointWriteError: if it refuses the folder.
    """
    write_export_manifest(folder, describe_file(folder / MODEL), tables, release)
    sync_directory(folder)
