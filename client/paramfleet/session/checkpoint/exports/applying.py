"""A base and the deltas behind it made to one export, which is a model by itself.

Rows are merged file to file: memory holds some of them at a time.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paramfleet.serving.errors import ExportDamagedError, ExportError
from paramfleet.serving.files import map_removed, map_rows
from paramfleet.serving.manifest import (
    MODEL,
    ExportedTable,
    ExportManifest,
    Release,
    read_export_manifest,
)
from paramfleet.session.checkpoint.exports.writing import finish_export
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.whole_folders import give_name, temporary_beside
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.deltas.merging.folding import put_rows
from paramfleet_shared.deltas.merging.runs import Run
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import row_file_name
from paramfleet_shared.files.tensorfile import created, proven_pieces

__all__ = ["Applied", "apply_deltas"]


class Applied(NamedTuple):
    """What was written."""

    path: str
    deltas: int
    """How many were applied."""
    tables: int
    rows: int
    """Of all tables."""


class _Part(NamedTuple):
    """The base, or a delta."""

    folder: Path
    manifest: ExportManifest


def apply_deltas(base: Path, deltas: Sequence[Path], output: Path) -> Applied:
    """Write an export that has a base with its deltas: a base that later deltas follow.

    Args:
        base: An export of ``mode=2``, or one that this has written.
        deltas: Exports of ``mode=1``, in their order.
        output: The new export's folder; an export of that name is replaced.

    Raises:
        ExportError: if one is no export, isn't a base or a delta, or doesn't follow the one
            before it.
        ExportDamagedError: if a file isn't what was exported.
        FolderNameError: if what has the name must stay.
        CheckpointWriteError: if the system refuses; nothing of that name is changed.
    """
    parts = _chain_of(base, deltas)
    final = folder_to_save(output)
    temporary = temporary_beside(final)
    try:
        temporary.mkdir(parents=True)
        tables = _write(parts, temporary)
        _copy_dense(parts[-1], temporary / MODEL)
        newest = parts[-1].manifest.release
        assert newest is not None, "it was checked"
        identity = newest.export
        release = Release(kind="base", export=identity, base=identity, after="", sequence=0)
        finish_export(temporary, tables, release)
        give_name(temporary, final)
    except OSError as error:
        raise CheckpointWriteError(path=str(final), reason=str(error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    rows = sum(each.rows for each in tables)
    return Applied(str(final), len(deltas), len(tables), rows)


def _chain_of(base: Path, deltas: Sequence[Path]) -> list[_Part]:
    """Return a base and the deltas behind it.

    Raises:
        ExportError: if they aren't, or one doesn't follow the one before it.
    """
    parts = [_Part(base, read_export_manifest(base))]
    before = parts[0].manifest.release
    if before is None:
        rule = "is an export of all rows, which no delta follows: name a base (mode=2)"
        raise ExportError(path=str(base), rule=rule)
    base_export = before.export
    widths = {name: table.dim for name, table in parts[0].manifest.tables.items()}
    for folder in deltas:
        manifest = read_export_manifest(folder, deltas=True)
        release = manifest.release
        if release is None or release.kind != "delta":
            raise ExportError(path=str(folder), rule="is no delta: name those of mode=1")
        if release.after != before.export:
            is_same = release.base == base_export
            rule = (
                f"is delta {release.sequence} of {'this' if is_same else 'another'} base, and "
                f"doesn't follow {parts[-1].folder}, which is named before it: name all deltas "
                f"of the base, in their order (it follows export {release.after}, and that one "
                f"is export {before.export})"
            )
            raise ExportError(path=str(folder), rule=rule)
        if {name: table.dim for name, table in manifest.tables.items()} != widths:
            rule = "has other tables, or other widths, than the base: save another base"
            raise ExportError(path=str(folder), rule=rule)
        before = release
        parts.append(_Part(folder, manifest))
    return parts


def _write(parts: Sequence[_Part], target: Path) -> list[ExportedTable]:
    """Write all tables.

    Raises:
        ExportDamagedError: if a file isn't what was exported.
        OSError: if the system refuses.
    """
    taken: set[str] = set()
    tables = []
    for name, table in parts[-1].manifest.tables.items():
        runs = [_run_of(part, name) for part in parts]
        file = row_file_name(name, taken)
        with created(target / file) as opened:
            put = put_rows(opened, runs, (name, table.dim), temporary_near(target))
        listed = ListedFile(name=file, bytes=put.written.num_bytes, sha256=put.written.sha256)
        tables.append(replace(table, rows=put.rows, file=listed, removed=None))
    return tables


def _run_of(part: _Part, name: str) -> Run:
    """Return the rows of a table, mapped and proven, and the ids that lose theirs before.

    Raises:
        ExportDamagedError: if a file isn't what was exported.
    """
    table = part.manifest.tables[name]
    ids, rows = map_rows(part.folder, table, verify=True)
    removed = map_removed(part.folder, table)
    return Run(ids, rows, np.setdiff1d(removed, ids) if len(removed) else removed)


def _copy_dense(part: _Part, target: Path) -> None:
    """Copy the dense part, proven.

    Raises:
        ExportDamagedError: if it isn't what was exported.
        OSError: if the system refuses what is written.
    """
    listed = part.manifest.model
    path = part.folder / listed.name
    with created(target) as file:
        try:
            for piece in proven_pieces(path, num_bytes=listed.bytes, sha256=listed.sha256):
                file.write(piece)
        except (FileNotFoundError, ValueError) as error:
            raise ExportDamagedError(path=str(path), reason=str(error)) from error
