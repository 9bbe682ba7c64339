"""An increment turned into a checkpoint that is whole by itself.

Rows are read and written a file at a time. The result has the identity of the increment, so
that later increments of it stay what they are, and its time.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet_shared.checkpoint.layers import LayerFile, Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    Manifest,
    ManifestError,
    SavedFile,
    copy_arrays,
    read_manifest,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.saved_ids import check_each_once
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_content
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.writing import TableWriter, new_checkpoint
from paramfleet_worker.core.checkpoints.integrity import server_of

__all__ = ["Compacted", "compact"]


class Compacted(NamedTuple):
    """What has become of a checkpoint."""

    path: str
    layers: int
    """How many checkpoints it was; 1 if it was whole already."""
    rows: int
    bytes: int


def compact(folder: Path, output: Path | None = None) -> Compacted:
    """Make a checkpoint whole by itself.

    Args:
        folder: It.
        output: Where the whole one goes; in its own place if not given.

    Raises:
        ManifestError: if it, or one that it builds on, can't be read, or another save has taken
            the name meanwhile, which stays.
        CheckpointDamagedError: if a file isn't what was saved; nothing is changed.
        CheckpointWriteError: if the system refuses; the same.
        FolderNameError: if what has the name must stay.
    """
    source = folder.resolve()
    layers = read_layers(source, read_manifest(source))
    manifest = layers.top.manifest
    if manifest.increment is None and output is None:
        return _described(source, manifest, layers=1)
    final = folder_to_save(source if output is None else output)
    former = manifest.digest if final == source else _digest_at(final)

    def check() -> None:
        if not isinstance(final, Address):
            _check_still_at(final, former)

    try:
        with new_checkpoint(final, check=check) as temporary:
            merged = _merged(layers, temporary)
    except CheckpointDamagedError:
        _check_still_at(source, manifest.digest)  # or it is a file of a newer one
        raise
    return _described(final, merged, layers=len(layers.layers))


def _digest_at(folder: Path) -> str:
    """Return the SHA-256 of a folder's manifest; empty if it has none that can be read."""
    try:
        return hashlib.sha256(read_content(folder / MANIFEST)).hexdigest()
    except (OSError, ValueError):
        return ""


def _check_still_at(folder: Path, digest: str) -> None:
    """Pass if a folder has the manifest that it had.

    Raises:
        ManifestError: if it doesn't.
    """
    if _digest_at(folder) != digest:
        rule = "was replaced by that of another save meanwhile, which stays: compact it again"
        raise ManifestError(path=str(folder / MANIFEST), rule=rule)


def _described(folder: Path, manifest: Manifest, *, layers: int) -> Compacted:
    return Compacted(
        path=str(folder),
        layers=layers,
        rows=sum(file.rows for file in manifest.files if file.kind == "sparse"),
        bytes=sum(file.bytes for file in manifest.files),
    )


def _merged(layers: Layers, target: Path) -> Manifest:
    """Write all files of a whole checkpoint, the manifest last."""
    source, manifest = layers.top
    files: list[SavedFile] = []
    for table in manifest.tables:
        found = layers.files(table.spec.name)
        if table.is_dense:
            files += [
                write_part(target, each.file.name, each.spec, each.read()) for each in found
            ]
        else:
            files += _rows(target, table.spec, found)
    for part in (manifest.module, manifest.progress):
        if part is not None and part.file:
            copy_arrays(source, part, target)
    whole = replace(manifest, files=tuple(files), increment=None)
    write_manifest(target, whole)
    return whole


def _rows(target: Path, spec: TableSpec, files: Iterator[LayerFile]) -> list[SavedFile]:
    """Write the rows of a table that count, those of each server in files of its own.

    Raises:
        CheckpointDamagedError: if an id is in two files.
    """
    by_server = dict[int | None, TableWriter]()
    paths, ids = [], []
    for file in files:  # each is let go before the next: it knows what newer ones decide
        part = file.read()
        assert part.ids is not None, "rows have ids"
        paths.append(file.path)
        ids.append(part.ids)
        name = file.file.name
        server = server_of(name)
        if server not in by_server:
            middle = "" if server is None else f".server{server}"
            by_server[server] = TableWriter(target, spec, name.split(".")[0] + middle)
        by_server[server].take(part)
    written = [saved for each in by_server.values() for saved in each.end()]
    check_each_once(spec.name, paths, ids)
    return written
