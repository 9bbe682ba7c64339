"""Everything of a checkpoint is read and compared with its manifest, in bounded memory.

What the whole of a table must be follows when each of its files is proven: a file that isn't
what was saved is one problem, and not one more for each of its rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    Manifest,
    ManifestError,
    map_arrays,
    read_manifest,
)
from paramfleet_shared.checkpoint.saved_module import SavedModule
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.tables.rows.states import check_rows
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.listing import (
    CheckpointFolderError,
    files_of,
    list_checkpoints,
)
from paramfleet_worker.app.checkpoints.mapped import MappedFile, MappedTable, slices_for
from paramfleet_worker.core.checkpoints.integrity import (
    doubled_ids,
    range_problems,
    server_of,
    shards_of_several,
    wrong_buffer,
)

__all__ = ["Problem", "Verified", "problem_of", "verify", "verify_in"]

_IDS_BYTES = 128 << 20
"""Of ids that are looked through for double ones at a time."""

_RESTORE = "restore the file from a backup, or use another checkpoint"
_OTHER = "use another checkpoint"
_UNFINISHED = (
    "name a checkpoint's folder, or one that has some in it; one that lacks its manifest is "
    "unfinished"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong with a checkpoint."""

    file: str
    problem: str
    remedy: str

    def to_line(self) -> str:
        """Return it as a sentence."""
        return f"{self.file}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was found in a checkpoint."""

    path: str
    files: int = 0
    rows: int = 0
    """Of all sparse tables."""

    bytes: int = 0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """What is no problem, but worth knowing."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"whole": not self.problems, **asdict(self)}


def problem_of(folder: Path) -> str:
    """Return the first thing that is wrong with a checkpoint; empty if nothing is."""
    found = verify(folder).problems
    return f"{found[0].file}: {found[0].problem}" if found else ""


def verify_in(folder: Path) -> list[Verified]:
    """Verify a checkpoint, or all that a folder has, newest first, but those being written."""
    try:
        listed = [] if (folder / MANIFEST).exists() else list_checkpoints(folder)
    except (CheckpointFolderError, OSError):
        listed = []
    found = [verify(place_of(each.path)) for each in listed if not each.unfinished]
    return found or [verify(folder)]


def verify(folder: Path) -> Verified:
    """Read everything of a checkpoint, and return what is wrong with it."""
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        problem = Problem(file=MANIFEST, problem=error.rule, remedy=_OTHER)
        if not (folder / MANIFEST).exists():
            what = f"is missing from {folder}"
            problem = Problem(file=MANIFEST, problem=what, remedy=_UNFINISHED)
        return Verified(path=str(folder), problems=(problem,))
    try:
        layers = read_layers(folder, manifest)
    except ManifestError as error:
        problem = Problem(file=MANIFEST, problem=error.rule, remedy=_OTHER)
        return Verified(path=str(folder), problems=(problem,))
    problems: list[Problem] = []
    for table in manifest.tables:
        problems += _of_table(layers, table.spec)
    for part in (manifest.module, manifest.progress):
        if part is not None and part.file:
            problems += _of_arrays(folder, part)
    sizes = files_of(manifest)
    return Verified(
        path=str(folder),
        files=len(sizes),
        rows=sum(file.rows for file in manifest.files if file.kind == "sparse"),
        bytes=sum(length for _, length in sizes),
        problems=tuple(problems),
        notes=tuple(_notes(folder, manifest)),
    )


def _of_table(layers: Layers, spec: TableSpec) -> Iterator[Problem]:
    mapped: list[MappedFile] = []
    wrong = set[str]()
    found = layers.files(spec.name)
    while True:
        try:
            layer = next(found, None)
        except CheckpointDamagedError as error:  # of ids that were removed, or of an increment
            name = _shown(error.path, layers)
            if name not in wrong:  # else it was read, and named
                yield Problem(file=name, problem=error.reason, remedy=_RESTORE)
            return
        if layer is None:
            break
        try:
            mapped.append(MappedFile(layer))
            problem = _wrong_numbers(mapped[-1], layer.spec)
        except CheckpointDamagedError as error:
            problem = error.reason
        if problem:
            name = _shown(str(layer.path), layers)
            wrong.add(name)
            yield Problem(file=name, problem=problem, remedy=_RESTORE)
    if spec.kind == "sparse":
        yield from _doubled(mapped, spec)
        of_top = [each for each in mapped if each.layer.folder == layers.top.folder]
        yield from _elsewhere(of_top, spec)
    elif not wrong:
        ranges = [(file.start, file.stop, file.file.name) for file in mapped]
        for name, problem in range_problems(ranges, spec.size):
            of_table = f"table {spec.name!r}: {problem}"
            yield Problem(file=name or MANIFEST, problem=of_table, remedy=_OTHER)


def _shown(path: str, layers: Layers) -> str:
    """Return the name of a file, with its folder's if that is of an earlier checkpoint."""
    file = place_of(path)
    return file.name if file.parent == layers.top.folder else f"{file.parent.name}/{file.name}"


def _wrong_numbers(file: MappedFile, spec: TableSpec) -> str:
    """Return what is wrong with a file's values and states; empty if nothing is."""
    for piece in file.pieces():
        part = file.part(piece)
        wrong = check_rows(spec.optimizer, part.values, part.states)
        if wrong is not None:
            last = piece.stop - 1
            return f"{wrong}, in rows {piece.start} to {last} of table {spec.name!r}"
    return ""


def _doubled(files: Sequence[MappedFile], spec: TableSpec) -> Iterator[Problem]:
    table = MappedTable(spec, files)
    slices = table.slices(slices_for(table.num_rows, 8, budget=_IDS_BYTES))
    for number in range(slices.count):
        found = list(slices.find(number))
        if not found:
            continue
        ids = np.concatenate([files[place].ids[rows] for place, rows in found])
        places = np.repeat([place for place, _ in found], [len(rows) for _, rows in found])
        for each in doubled_ids(ids, places.astype(np.int64)):
            name, other = files[each.file].file.name, files[each.other].file.name
            where = "there twice" if name == other else f"in {other}, too"
            problem = f"id {each.id} of table {spec.name!r} is {where}"
            yield Problem(file=name, problem=problem, remedy=_OTHER)


def _elsewhere(files: Sequence[MappedFile], spec: TableSpec) -> Iterator[Problem]:
    """Yield shards of which several servers wrote rows: each has one server."""
    slices = MappedTable(spec, files).slices(spec.num_shards)
    servers = [server_of(file.file.name) for file in files]
    for shard, several in shards_of_several(slices.has, servers).items():
        place, rows = [each for each in slices.find(shard) if servers[each.file] in several][-1]
        others = ", ".join(str(each) for each in several if each != servers[place])
        problem = (
            f"id {files[place].ids[rows[0]]} of table {spec.name!r} belongs to shard {shard}, "
            f"of which server {others} has rows, too"
        )
        yield Problem(file=files[place].file.name, problem=problem, remedy=_OTHER)


def _of_arrays(folder: Path, saved: SavedModule) -> Iterator[Problem]:
    try:
        arrays = map_arrays(folder, saved)
    except CheckpointDamagedError as error:
        yield Problem(file=saved.file, problem=error.reason, remedy=_RESTORE)
        return
    for buffer in saved.buffers:
        if f"buffers/{buffer.name}" not in arrays:
            problem = f"buffer {buffer.name!r} is missing"
            yield Problem(file=saved.file, problem=problem, remedy=_RESTORE)
            continue
        array = arrays[f"buffers/{buffer.name}"]
        if wrong := wrong_buffer(buffer.name, buffer.dtype, array):
            problem = f"buffer {buffer.name!r} {wrong}"
            yield Problem(file=saved.file, problem=problem, remedy=_OTHER)


def _notes(folder: Path, manifest: Manifest) -> Iterator[str]:
    if manifest.increment is not None:
        yield f"it is an increment of {manifest.increment.base.folder}, and needs that one"
    cut = manifest.cut
    if cut is not None and not cut.consistent:
        yield f"it is not a consistent cut: {cut.reason}"
    for differs in manifest.columns_that_differ():
        if differs.anew:
            anew = ", ".join(differs.anew)
            yield f"table {differs.table!r} has no states {anew}: they start from the beginning"
        if differs.dropped:
            dropped = ", ".join(differs.dropped)
            yield f"states {dropped} of table {differs.table!r} are not used"
    named = {MANIFEST, *(name for name, _ in files_of(manifest))}
    others = sorted({each.name for each in folder.iterdir()} - named)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield f"the manifest doesn't name {others[0]}{more}"
