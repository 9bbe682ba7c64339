"""The files of ``fleet.save_inference_model``: rows by table, and the manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paramfleet.serving.files import describe_file
from paramfleet.serving.manifest import (
    MODEL,
    ExportedTable,
    write_export_manifest,
)
from paramfleet.serving.unknown import Policy
from paramfleet_shared.checkpoint.manifest import Manifest, read_part, sync_directory
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import row_file_name
from paramfleet_shared.files.tensorfile import write_tensors

__all__ = ["finish_export", "write_rows"]


def write_rows(
    parts: Path,
    manifest: Manifest,
    target: Path,
    unknown: Mapping[str, Policy | list[float]],
) -> list[ExportedTable]:
    """Write each sparse table's ids and rows as one file, sorted by id.

    Args:
        parts: A whole checkpoint.
        manifest: Its manifest.
        target: The folder to write to.
        unknown: What ids without a row shall read, by table; ``"initial"`` in others.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
        OSError: if the system refuses.
    """
    specs = [table.spec for table in manifest.tables if table.spec.kind == "sparse"]
    taken: set[str] = set()
    tables = []
    for spec in specs:
        files = [file for file in manifest.files if file.table == spec.name]
        read = [read_part(parts, file, spec) for file in files]
        ids = np.concatenate(
            [np.empty(0, np.int64), *(p.ids for p in read if p.ids is not None)]
        )
        rows = np.concatenate([np.empty((0, spec.dim), np.float32), *(p.values for p in read)])
        order = np.argsort(ids, kind="stable")
        name = row_file_name(spec.name, taken)
        both = {"ids": ids[order], "rows": rows[order]}
        written = write_tensors(target / name, both, {"table": spec.name})
        file = ListedFile(name=name, bytes=written.num_bytes, sha256=written.sha256)
        policy = unknown.get(spec.name, "initial")
        tables.append(ExportedTable.of(spec, rows=len(ids), unknown=policy, file=file))
    return tables


def finish_export(folder: Path, tables: Sequence[ExportedTable]) -> None:
    """Write the manifest, when all other files are there.

    Raises:
        OSError: if the system refuses.
        CheckpointWriteError: if it refuses the folder.
    """
    write_export_manifest(folder, describe_file(folder / MODEL), tables)
    sync_directory(folder)
