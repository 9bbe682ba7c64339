"""``paramfleet checkpoint import``: a checkpoint with a table's rows from another program."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    SavedFile,
    copy_arrays,
    read_manifest,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.saved_rows import sparse_spec
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.foreign import ForeignTable
from paramfleet_worker.app.checkpoints.foreign_rows import OTHER_TABLE, ForeignRows, refuse
from paramfleet_worker.app.checkpoints.paddle_text import CountedRows, day_of
from paramfleet_worker.app.checkpoints.writing import TableWriter, new_checkpoint

__all__ = ["Imported", "import_table"]


class Imported(NamedTuple):
    """What was made."""

    path: str
    table: str
    rows: int
    replaced: int
    """Rows that the table had before."""


def import_table(source: ForeignTable, *, into: Path, table: str, output: Path) -> Imported:
    """Write a checkpoint as it is, but for the rows of one table.

    These are all of the source, with optimizer states of new rows; the table keeps none of its
    own. Rows of Paddle keep their counts, days and states where the table has an accessor with
    the same rules. The checkpoint says what the table is, and has the rest of the model.

    Args:
        source: The rows.
        into: The checkpoint, such as one that the model wrote before its first step.
        table: The table's name in it.
        output: Where the new one goes.

    Raises:
        ForeignTableError: if the source can't be read, has rows of another width, an id twice,
            or a number that isn't finite.
        ManifestError: if ``into`` is no checkpoint.
        NoSuchTableError: if it has no such sparse table.
        CheckpointDamagedError: if a file of it isn't what was saved.
        CheckpointWriteError: if the system refuses; nothing is changed.
        FolderNameError: if what has the name of ``output`` must stay.
    """
    folder = into.resolve()
    layers = read_layers(folder, read_manifest(folder))
    spec = sparse_spec(folder, layers.top.manifest, table)
    final = folder_to_save(output)
    with new_checkpoint(final) as target:
        files, replaced = _other_files(layers, target, table)
        written = _rows(target, spec, _read(layers, spec, source))
        _finish(layers, target, (*files, *written))
    return Imported(str(final), table, sum(file.rows for file in written), replaced)


def _other_files(layers: Layers, target: Path, table: str) -> tuple[list[SavedFile], int]:
    """Write the files of all tables but one; return them, and the rows of that one."""
    files: list[SavedFile] = []
    num_rows = 0
    for saved in layers.top.manifest.tables:
        for number, each in enumerate(layers.files(saved.spec.name)):
            part = each.read()
            if saved.spec.name == table:
                num_rows += part.num_rows
                continue
            stem = each.file.name.split(".")[0]
            name = each.file.name if saved.is_dense else f"{stem}.{number:05d}.safetensors"
            files.append(write_part(target, name, saved.spec, part))
    return files, num_rows


def _read(layers: Layers, spec: TableSpec, source: ForeignTable) -> Iterator[ForeignRows]:
    """Yield the rows of the source, with what an accessor keeps of them if it has that."""
    if source.form != "paddle" or not spec.optimizer.num_counts:
        return source.read(dim=spec.dim)
    return source.read_counted(CountedRows(spec, day_of(layers, spec.name)))


def _rows(target: Path, spec: TableSpec, source: Iterator[ForeignRows]) -> list[SavedFile]:
    """Write the table's rows.

    Raises:
        ForeignTableError: if they can't be those of the table.
    """
    named = hashlib.sha256(spec.name.encode()).hexdigest()[:16]  # a name may have a slash
    writer = TableWriter(target, spec, f"imported-{named}")
    states = RowLayout.of(spec).states
    ids = [np.empty(0, np.int64)]
    path = target
    for piece in source:
        path = piece.path
        width = piece.values.shape[1]
        if width != spec.dim:
            rule = f"its rows have {width} numbers, and those of the table {spec.dim}"
            refuse(piece.path, f"{rule}: {OTHER_TABLE}")
        new = states.new_rows(len(piece.ids)) if piece.states is None else piece.states
        is_finite = np.isfinite(piece.values).all(axis=1) & np.isfinite(new).all(axis=1)
        broken = np.flatnonzero(~is_finite)
        if broken.size:
            found = piece.ids[broken[0]]
            rule = f"the row of id {found} has a number that isn't finite"
            refuse(piece.path, f"{rule}: mend the row, or leave it out")
        ids.append(piece.ids)
        writer.take(FilePart(ids=piece.ids, values=piece.values, states=new))
    whole = np.sort(np.concatenate(ids))
    twice = whole[1:][whole[1:] == whole[:-1]]
    if twice.size:
        refuse(path, f"id {twice[0]} has two rows: keep one of them")
    return writer.end()


def _finish(layers: Layers, target: Path, files: tuple[SavedFile, ...]) -> None:
    """Write what a checkpoint has beside its tables, and the manifest last.

    It has an identity of its own: no increment builds on it.
    """
    source, manifest = layers.top
    for part in (manifest.module, manifest.progress):
        if part is not None and part.file:
            copy_arrays(source, part, target)
    write_manifest(target, replace(manifest, files=files, increment=None, save=""))
