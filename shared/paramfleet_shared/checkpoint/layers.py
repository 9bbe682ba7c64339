"""A checkpoint with all those that it builds on: what they hold together.

A whole checkpoint is one layer. An increment is the first layer, its base the next one, and so
on to one that is whole. Of each id the first layer counts that has a row of it, or says that it
was removed. Dense tables are whole in each layer, so those of the first one count.

n = rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.manifest import (
    GROUP_FORMAT,
    MANIFEST,
    FilePart,
    Manifest,
    ManifestError,
    SavedFile,
    map_part,
    read_manifest,
    read_part,
    read_removed,
)
from paramfleet_shared.files.documents import read_content, read_document
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.sorting import each_once

__all__ = ["MOST_LAYERS", "Layer", "LayerFile", "Layers", "folders_of", "read_layers"]

MOST_LAYERS = 1001
"""A chain that is longer isn't read: 1000 increments, and the whole one."""

_NO_IDS = np.empty(0, np.int64)


class Layer(NamedTuple):
    """One checkpoint of a chain."""

    folder: Path
    manifest: Manifest


class LayerFile(NamedTuple):
    """A file of one layer, and what of it doesn't count any more."""

    folder: Path
    file: SavedFile
    spec: TableSpec
    """As its own manifest has the table."""
    settled: NDArray[np.int64]
    """Ids that earlier layers decide, sorted, each once."""

    @property
    def path(self) -> Path:
        """Return where it is."""
        return self.folder / self.file.name

    def read(self) -> FilePart:
        """Return the rows that count.

        Raises:
            CheckpointDamagedError: if the file isn't what was saved.
        """
        part = read_part(self.folder, self.file, self.spec)
        if part.ids is None or not self.settled.size:
            return part
        counts = self.counts(part.ids)
        return replace(
            part, ids=part.ids[counts], values=part.values[counts], states=part.states[counts]
        )

    def alone(self) -> "LayerFile":
        """Return it without what newer layers decide, whose memory grows with each layer."""
        return self._replace(settled=_NO_IDS)

    def counts(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ids, int64 [n], count: bool [n]."""
        if not self.settled.size:
            return np.ones(len(ids), np.bool_)
        places = np.searchsorted(self.settled, ids)
        places[places == self.settled.size] = 0
        is_counted: NDArray[np.bool_] = self.settled[places] != ids
        return is_counted


class Layers:
    """The layers of a checkpoint, the newest first.

    Args:
        layers: They, whose manifests fit together.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._settled: tuple[str, int, NDArray[np.int64]] = ("", 0, _NO_IDS)
        """Of which table and layer ``file`` was asked last, and which ids are decided there."""

    @property
    def top(self) -> Layer:
        """Return the checkpoint itself."""
        return self.layers[0]

    def tables_of_files(self) -> list[str]:
        """Return the table of each file of all tables, in the order of ``file``."""
        return [file.table for _, file in self._all()]

    def file(self, number: int) -> LayerFile | None:
        """Return one of the files of all tables; None if there are fewer.

        Who asks for one after the other has the ids of each layer read once.

        Raises:
            CheckpointDamagedError: as ``files``.
        """
        places = self._all()
        if not 0 <= number < len(places):
            return None
        layer, file = places[number]
        folder, manifest = self.layers[layer]
        settled = self._settled_at(file.table, layer)
        return LayerFile(folder, file, _spec_of(manifest, file.table), settled)

    def _all(self) -> list[tuple[int, SavedFile]]:
        """Return the files of all tables, and which layer each is of."""
        return [
            (layer, file)
            for table in self.top.manifest.tables
            for layer, (_, manifest) in enumerate(
                self.layers[:1] if table.is_dense else self.layers
            )
            for file in manifest.files
            if file.table == table.spec.name
        ]

    def _settled_at(self, table: str, layer: int) -> NDArray[np.int64]:
        """Return which ids of a table the layers before one decide."""
        known, begin, settled = self._settled
        if known != table or begin > layer:
            begin, settled = 0, _NO_IDS
        for folder, manifest in self.layers[begin:layer]:
            spec = _spec_of(manifest, table)
            settled = self._settled_behind(settled, folder, manifest, spec)
        self._settled = (table, layer, settled)
        return settled

    def files(self, table: str) -> Iterator[LayerFile]:
        """Yield the files of a table, those of the newest layer first.

        Raises:
            CheckpointDamagedError: if ids of an increment can't be read.
        """
        settled = _NO_IDS
        for number, (folder, manifest) in enumerate(self.layers):
            spec = _spec_of(manifest, table)
            files = [file for file in manifest.files if file.table == table]
            for file in files:
                yield LayerFile(folder, file, spec, settled)
            if spec.kind == "dense":
                return
            if number + 1 < len(self.layers):
                settled = self._settled_behind(settled, folder, manifest, spec)

    def _settled_behind(
        self, settled: NDArray[np.int64], folder: Path, manifest: Manifest, spec: TableSpec
    ) -> NDArray[np.int64]:
        """Return which ids are decided by a layer and those before it."""
        found = [settled]
        for file in manifest.files:
            if file.table == spec.name:
                ids = map_part(folder, file, spec).ids
                assert ids is not None, "a sparse file has ids"
                found.append(ids)
        if manifest.increment is not None:
            removed = manifest.increment.removed
            found += [read_removed(folder, e) for e in removed if e.table == spec.name]
        return each_once(np.concatenate(found))


def read_layers(
    folder: Path, manifest: Manifest, *, allow: Callable[[str], object] | None = None
) -> Layers:
    """Return a checkpoint with those that it builds on.

    Args:
        folder: Its folder; a link in its place may lead elsewhere later.
        manifest: Its manifest.
        allow: Given each folder that it builds on, before that is read; raises if it may not.

    Raises:
        ManifestError: if one of them is missing, is a link, is another one, or has other
            tables, or if they build on each other in a circle.
    """
    layers = [Layer(folder, manifest)]
    found = {manifest.save}
    while (increment := manifest.increment) is not None:
        where = (folder.resolve() if len(layers) == 1 else folder).parent
        base = where / increment.base.folder
        path = str(folder / MANIFEST)
        if increment.base.save in found or len(layers) == MOST_LAYERS:
            rule = "builds on a chain that has no end: use another checkpoint"
            raise ManifestError(path=path, rule=rule)
        if base.is_symlink():
            rule = (
                f"is an increment of {increment.base.folder}, which is a link in the same "
                "folder, and may lead out of it: put the checkpoint itself there"
            )
            raise ManifestError(path=path, rule=rule)
        if allow is not None:
            allow(str(base))
        try:
            beneath = read_manifest(base)
        except ManifestError as error:
            rule = (
                f"is an increment of {increment.base.folder}, which can't be read: "
                f"{error.rule}; put that one into the same folder, or use another checkpoint"
            )
            raise ManifestError(path=path, rule=rule) from error
        if beneath.save != increment.base.save:
            rule = (
                f"is an increment of {increment.base.folder}, which is another checkpoint now: "
                "put the one that it was made from into the same folder, or use another "
                "checkpoint"
            )
            raise ManifestError(path=path, rule=rule)
        _check_same_tables(path, manifest, beneath)
        found.add(beneath.save)
        layers.append(Layer(base, beneath))
        folder, manifest = base, beneath
    return Layers(layers)


def folders_of(folder: Path) -> list[str]:
    """Return the names of the folders that a checkpoint builds on: all of them, to the end.

    Raises:
        ManifestError: if the chain can't be followed to its end, for now or for good.
    """
    if _is_of_group(folder):
        return []
    manifest = read_manifest(folder)
    return [base.name for base, _ in read_layers(folder, manifest).layers[1:]]


def _is_of_group(folder: Path) -> bool:
    """Return whether a checkpoint is one of a job without servers: it builds on none."""
    try:
        document = read_document(read_content(folder / MANIFEST))
    except (OSError, ValueError):
        return False  # reading the manifest raises the error that says why
    return type(document) is dict and document.get("format") == GROUP_FORMAT


def _check_same_tables(path: str, manifest: Manifest, beneath: Manifest) -> None:
    """Pass if an increment's tables are those of its base.

    Raises:
        ManifestError: naming the first that isn't.
    """
    known = {table.spec.name: table.spec for table in beneath.tables}
    for table in manifest.tables:
        if table.spec.kind == "sparse" and known.get(table.spec.name) != table.spec:
            rule = f"is an increment of a checkpoint with another table {table.spec.name!r}"
            raise ManifestError(path=path, rule=rule)


def _spec_of(manifest: Manifest, table: str) -> TableSpec:
    (spec,) = [each.spec for each in manifest.tables if each.spec.name == table]
    return spec
