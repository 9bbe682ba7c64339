"""The files of a checkpoint, and the manifest that names them.

A checkpoint is a folder: safetensors files, each with a part of one table, and
``manifest.json``, which names each with its length and SHA-256. A file of a sparse
table holds ``ids`` int64 [n], ``values`` float32 [n, D] and ``states`` float32
[n, W], the rule's columns beside each other; one of a dense table holds ``values`` [n] and
``states`` [S, n], and in its metadata the range ``start`` and ``stop``. The manifest names the
columns of each (``columns``), and the parameters that a dense table holds
(``saved_parameters``). One more file holds the model's buffers (``saved_module``). The
manifest's ``rows`` says how many each sparse table has, so that a lost entry of a file is
noticed. One that is an increment (``increments``) holds of its sparse tables only the rows that
changed since its base. Nothing in a file is ever evaluated.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.columns import (
    Columns,
    ColumnsDiffer,
    arranged,
    columns_of,
    differing,
    read_columns,
)
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.gathered import GatheredStates
from paramfleet_shared.checkpoint.increments import Increment, RemovedIds, is_identity
from paramfleet_shared.checkpoint.saved_module import SavedModule, check_file_name
from paramfleet_shared.checkpoint.saved_parameters import DenseParameters, read_parameters
from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    IntegrityError,
    UnavailableError,
)
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_content, read_document, whole
from paramfleet_shared.files.regular_files import write_regular
from paramfleet_shared.files.tensorfile import (
    TensorFile,
    Written,
    created,
    map_proven,
    proven_pieces,
    read_tensors,
    write_tensors,
)
from paramfleet_shared.files.visibility import make_private, private_mode
from paramfleet_shared.tables.rows.states import check_rows
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.sorting import each_once
from paramfleet_shared.values.spans import MissedUpdates

__all__ = [
    "FORMAT", "GROUP_FORMAT", "MANIFEST", "VERSION", "CheckpointDamagedError",
    "CheckpointWriteError", "FilePart", "Manifest", "ManifestError", "SavedFile", "SavedTable",
    "StatesLeftOut", "copy_arrays", "map_arrays", "map_part", "new_identity", "put_manifest",
    "read_arrays", "read_manifest", "read_manifest_document", "read_part", "read_removed",
    "sync_directory", "write_arrays", "write_manifest", "write_part", "write_removed",
]  # fmt: skip

_T = TypeVar("_T")

FORMAT = "paramfleet-checkpoint"
GROUP_FORMAT = "paramfleet-group-checkpoint"
"""What the manifest of a job without servers states."""
_EXPORT = "paramfleet-export"
"""What the manifest of an exported model states."""
VERSION = 1
_OF_INCREMENTS = 2
"""Of increments: versions that don't know these would take one for a whole checkpoint."""
MANIFEST = "manifest.json"
_MAX_HEADER_BYTES = 1 << 20
"""Of a file with a part of a table: it names three tensors and the table."""


class ManifestError(ContractError):
    """A folder is no checkpoint that this version can read."""

    code = "contract.manifest"
    path: str
    rule: str
    sentence = "{path}: {rule}"


class CheckpointDamagedError(IntegrityError):
    """A file of a checkpoint is not what was saved."""

    code = "integrity.checkpoint_damaged"
    path: str
    reason: str
    sentence = "{path}: {reason}; use another checkpoint"


class CheckpointWriteError(UnavailableError):
    """A file of a checkpoint could not be written."""

    code = "unavailable.checkpoint_write"
    path: str
    reason: str
    sentence = "{path}: {reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedFile:
    """One file of a checkpoint, as the manifest names it."""

    name: str
    sha256: str
    bytes: int
    rows: int
    table: str
    kind: str
    columns: Columns | None = None
    """Of its states; None if it doesn't name them: then they are those of its rule."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedFile":
        """Rebuild what ``to_wire`` returned.

        Raises:
            ValueError: if the name is none that a file is saved under, or a value is no
                number.
            KeyError: if a value is missing.
        """
        name = str(wire["name"])
        check_file_name(name)
        return cls(
            name=name,
            sha256=str(wire["sha256"]),
            bytes=whole(wire["bytes"], "bytes"),
            rows=whole(wire["rows"], "rows"),
            table=str(wire["table"]),
            kind=str(wire["kind"]),
            columns=None if (named := wire.get("columns")) is None else read_columns(named),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTable:
    """One table of a checkpoint."""

    spec: TableSpec
    version: int
    """Pushes or steps applied when it was saved."""
    missed: MissedUpdates = field(default_factory=MissedUpdates)
    """Of a dense table: how many of them had no gradient for each value."""

    @property
    def is_dense(self) -> bool:
        """Return whether it holds parameters, and no rows."""
        return self.spec.kind == "dense"

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        wire = {**self.spec.to_wire(), "version": self.version}
        return {**wire, "missed": [*map(list, self.missed.counts())]} if self.missed else wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedTable":
        """Rebuild what ``to_wire`` returned.

        Raises:
            TableSpecError: if the table is described wrongly.
            KeyError: if its version is missing.
            ValueError: if that is no number of steps, or a count of missed ones is none.
        """
        plain = dict(wire)
        version, counts = whole(plain.pop("version"), "version"), plain.pop("missed", [])
        spec = TableSpec.from_wire(plain)
        missed = MissedUpdates.checked(counts, spec.size)
        return cls(spec=spec, version=version, missed=missed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint consists of."""

    tables: tuple[SavedTable, ...]
    files: tuple[SavedFile, ...]
    cut: Cut | None = None
    """Of what moment it is; None if it doesn't say."""
    module: SavedModule | None = None
    """The model's state beside its tables; None if it was saved without."""
    progress: SavedModule | None = None
    """What the script registered, such as a schedule, and the steps; None if it has nothing."""
    gathered: GatheredStates | None = None
    """Whose optimizer states are in it where each worker has its own; else None."""
    parameters: DenseParameters = field(default_factory=dict)
    """Of its dense tables; without those of which it doesn't say them."""
    increment: Increment | None = None
    """Of which other one it holds the changes; None if it is whole by itself."""
    save: str = field(default="", compare=False)
    """Its identity; empty if it has none, and one is made when it is written."""
    digest: str = field(default="", compare=False)
    """SHA-256 of the file it was read from; empty if it was not read."""
    written_at: datetime | None = field(default=None, compare=False)
    """When it was written; None if it doesn't say, or was not read."""

    def with_names(self, spec: TableSpec) -> TableSpec:
        """Return a table's description with the parameters that it holds, if they are known."""
        held = self.parameters.get(spec.name, ())
        return replace(spec, parameters=tuple((each.name, each.shape) for each in held))

    def columns_that_differ(self) -> list[ColumnsDiffer]:
        """Return the tables that have other columns of state than their rules have now.

        Raises:
            ValueError: if a column has another width.
        """
        each = (
            differing(
                table.spec,
                [
                    file.columns
                    for file in self.files
                    if file.table == table.spec.name and file.columns is not None
                ],
            )
            for table in self.tables
        )
        return [differs for differs in each if differs is not None]


class StatesLeftOut(NamedTuple):
    """A table whose optimizer states in a checkpoint are another rule's."""

    table: str
    saved: str
    """The rule that had trained it."""
    rule: str
    """The rule that trains it from now on, with new states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePart:
    """What one file holds of a table."""

    values: NDArray[np.float32]
    states: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None
    """Of a sparse table."""
    start: int = 0
    """Of a dense table: the first value's place."""

    @property
    def num_rows(self) -> int:
        """Return the rows (dense: values)."""
        return len(self.values)


def write_part(
    directory: Path, name: str, spec: TableSpec, part: FilePart, *, makes: bool = True
) -> SavedFile:
    """Write one file, and wait until it is on the disk.

    Args:
        directory: Where to.
        name: The file's name.
        spec: The table.
        part: What the file will hold.
        makes: As of ``write_arrays``.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    tensors: dict[str, NDArray[Any]] = {"values": part.values, "states": part.states}
    metadata = {"table": spec.name, "kind": spec.kind}
    if part.ids is not None:
        tensors["ids"] = part.ids
    else:
        metadata |= {"start": str(part.start), "stop": str(part.start + part.num_rows)}
    written = write_arrays(directory, name, tensors, metadata, makes=makes)
    return SavedFile(
        name=name,
        sha256=written.sha256,
        bytes=written.num_bytes,
        rows=part.num_rows,
        table=spec.name,
        kind=spec.kind,
        columns=columns_of(spec),
    )


def write_arrays(
    directory: Path,
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    makes: bool = True,
) -> Written:
    """Write one file of arrays, and wait until it is on the disk.

    Args:
        directory: Where to.
        name: The file's name.
        arrays: Of the dtypes that ``tensorfile`` has, by name.
        metadata: What the file says of itself.
        makes: Whether the folder is made if it is missing; else that is an error.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    path = directory / name
    try:
        if makes:
            make_private(directory)
        return write_tensors(path, arrays, metadata, mode=private_mode(path))
    except OSError as error:
        raise CheckpointWriteError(path=str(path), reason=str(error)) from error


def read_arrays(directory: Path, saved: SavedModule) -> dict[str, NDArray[Any]]:
    """Read the file of a model's state, and prove that it is the one that was saved.

    Raises:
        CheckpointDamagedError: if it is missing, or its length or SHA-256 is another.
    """
    path = directory / saved.file
    with _damage_named(path):
        return read_tensors(path, num_bytes=saved.bytes, sha256=saved.sha256).tensors


def copy_arrays(directory: Path, saved: SavedModule, target: Path) -> None:
    """Copy the file of a model's state, prove it, and wait until it is on the disk.

    Args:
        directory: Of the checkpoint.
        saved: What its manifest says of the file.
        target: The folder to copy to; made if it is missing.

    Raises:
        CheckpointDamagedError: if the file is missing, or isn't what was saved.
        CheckpointWriteError: if the system refuses to write.
    """
    path, copy = directory / saved.file, target / saved.file

    def pieces() -> Iterator[memoryview]:
        with _damage_named(path):
            yield from proven_pieces(path, num_bytes=saved.bytes, sha256=saved.sha256)

    try:
        make_private(target)
        with created(copy, mode=private_mode(copy)) as file:
            for piece in pieces():
                file.write(piece)
    except OSError as error:
        raise CheckpointWriteError(path=str(copy), reason=str(error)) from error


def sync_directory(directory: Path) -> None:
    """Wait until a folder, made if it is missing, and its files' names are on the disk.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    if isinstance(directory, Address):  # files are there when they are closed
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointWriteError(path=str(directory), reason=str(error)) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a checkpoint's manifest, when all its files are on the disk.

    It differs from that of every other save, so that its digest says which one this is.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if manifest.increment is None else _OF_INCREMENTS,
        "save": manifest.save or new_identity(),  # no other save has the same digest
        "written_at": (manifest.written_at or datetime.now(UTC)).isoformat(
            timespec="milliseconds"
        ),
        "tables": [table.to_wire() for table in manifest.tables],
        "files": [file.to_wire() for file in manifest.files],
        "rows": _rows_of(manifest.tables, manifest.files),
    }
    names = ("cut", "module", "progress", "gathered", "increment")
    more = {name: getattr(manifest, name) for name in names}
    document |= {name: part.to_wire() for name, part in more.items() if part is not None}
    if manifest.parameters:
        document["parameters"] = {
            table: [each.to_wire() for each in parameters]
            for table, parameters in manifest.parameters.items()
        }
    put_manifest(directory, document)


def put_manifest(directory: Path, document: Mapping[str, Any]) -> None:
    """Write the document of a manifest; the directory is made, and both are on the disk then.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    path = directory / MANIFEST
    try:
        make_private(directory)
        content = json.dumps(document, indent=1).encode()
        write_regular(path, content, mode=private_mode(path))
    except OSError as error:
        raise CheckpointWriteError(path=str(path), reason=str(error)) from error
    sync_directory(directory)


def read_manifest(directory: Path, *, digest: str = "") -> Manifest:
    """Read a checkpoint's manifest; with ``digest``, only the one of this SHA-256.

    Raises:
        ManifestError: if there is none, it is another, it breaks a rule of the format, or its
            files lack rows of a sparse table.
    """
    path = directory / MANIFEST
    document, found = read_manifest_document(path, digest=digest)
    if rule := _broken_format(document):
        raise ManifestError(path=str(path), rule=rule)
    try:
        manifest, rows = _manifest_of(document)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(path=str(path), rule=f"is malformed: {error!r}") from error
    except FleetError as error:
        raise ManifestError(path=str(path), rule=str(error)) from error
    if rule := _broken_rule(manifest, rows):
        raise ManifestError(path=str(path), rule=rule)
    try:
        manifest.columns_that_differ()
    except ValueError as error:
        raise ManifestError(path=str(path), rule=str(error)) from error
    return replace(manifest, digest=found)


def read_manifest_document(path: Path, *, digest: str, advice: str = "") -> tuple[Any, str]:
    """Return what a manifest's file says, of whatever kind it is, and the file's SHA-256.

    Args:
        path: The file.
        digest: The only SHA-256 that it may have; empty for any.
        advice: Ends the error about a file that can't be read.

    Raises:
        ManifestError: if there is none, it is another, or no document.
    """
    try:
        content = read_content(path)
        document = read_document(content)
    except FileNotFoundError as error:
        rule = "is missing: its folder is no checkpoint, or isn't there"
        raise ManifestError(path=str(path), rule=rule) from error
    except (OSError, ValueError) as error:
        rule = f"can't be read: {error}{advice}"
        raise ManifestError(path=str(path), rule=rule) from error
    found = hashlib.sha256(content).hexdigest()
    if digest not in {"", found}:
        rule = "was replaced by that of another checkpoint while it was loaded; load it again"
        raise ManifestError(path=str(path), rule=rule)
    return document, found


def _manifest_of(document: Mapping[str, Any]) -> tuple[Manifest, dict[str, int]]:
    """Return what a document says, and how many rows each sparse table has by it.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one can't be read at all.
        ValueError: if one is of another kind.
        FleetError: if a table is described wrongly.
    """

    def found(name: str, read: Callable[[Any], _T]) -> _T | None:
        wire = document.get(name)
        return None if wire is None else read(wire)

    tables = tuple(SavedTable.from_wire(wire) for wire in document["tables"])
    sizes = {table.spec.name: table.spec.size for table in tables if table.is_dense}
    manifest = Manifest(
        tables=tables,
        files=tuple(SavedFile.from_wire(wire) for wire in document["files"]),
        cut=Cut.from_wire(document["cut"]) if "cut" in document else None,
        module=SavedModule.from_wire(document["module"]) if "module" in document else None,
        progress=found("progress", SavedModule.from_wire),
        gathered=found("gathered", GatheredStates.from_wire),
        parameters=read_parameters(document.get("parameters", {}), sizes),
        increment=_increment_of(document),
        save=str(save) if is_identity(save := document.get("save")) else "",
        written_at=_written_at(document),
    )
    counts = document.get("rows")
    return manifest, {} if counts is None else _stated_rows(tables, counts)


def _increment_of(document: Mapping[str, Any]) -> Increment | None:
    """Return what a manifest says of its base; None if it is whole by itself.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one can't be read at all.
        ValueError: if one is of another kind, or the version isn't that of increments.
    """
    wire = document.get("increment")
    if (document["version"] == _OF_INCREMENTS) != (wire is not None):
        problem = f"increments, and no others, are of version {_OF_INCREMENTS}"
        raise ValueError(problem)
    return None if wire is None else Increment.from_wire(wire)


def _written_at(document: Mapping[str, Any]) -> datetime | None:
    """Return when a manifest says that it was written; None if it doesn't.

    Raises:
        TypeError: if it is no text.
        ValueError: if it is no time with its offset from UTC, or has no year there.
    """
    if "written_at" not in document:
        return None
    found = datetime.fromisoformat(document["written_at"])
    if found.tzinfo is None:
        raise ValueError("written_at has no offset from UTC")
    try:
        return found.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("written_at is outside the years 1 to 9999 in UTC") from error


def _broken_format(document: Any) -> str:
    """Return why a document is no manifest of this version; empty if it may be one."""
    stated = (document.get("format"), document.get("version")) if type(document) is dict else ()
    if stated in ((FORMAT, VERSION), (FORMAT, _OF_INCREMENTS)):
        return ""
    if stated[:1] == (_EXPORT,):
        return (
            "is that of an export, which fleet.serving.load reads and no training can "
            "continue from: load a folder that fleet.save_persistables wrote"
        )
    if stated[:1] == (GROUP_FORMAT,):
        return (
            "is that of a job without servers: load it in one, fleet.init(is_collective=True)"
        )
    return f"must be {FORMAT} version {VERSION}"


def new_identity() -> str:
    """Return an identity that no other save has."""
    return secrets.token_hex(16)


def write_removed(
    directory: Path, name: str, table: str, ids: NDArray[np.int64], *, makes: bool = True
) -> RemovedIds:
    """Write the ids, int64 [n], of rows that were removed, and wait until they are on the disk.

    A missing folder is made, or is an error, as ``write_arrays`` has it.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    about = {"table": table, "kind": "removed"}
    written = write_arrays(directory, name, {"ids": ids}, about, makes=makes)
    return RemovedIds(
        name=name,
        sha256=written.sha256,
        bytes=written.num_bytes,
        ids=len(ids),
        table=table,
    )


def read_removed(directory: Path, removed: RemovedIds) -> NDArray[np.int64]:
    """Return the ids, int64 [n], of rows that were removed: a view of the file, proven.

    Raises:
        CheckpointDamagedError: if the file is missing, or isn't what was saved.
    """
    path = directory / removed.name
    with _damage_named(path):
        most = 8 * removed.ids + _MAX_HEADER_BYTES
        found = map_proven(path, num_bytes=min(removed.bytes, most), sha256=removed.sha256)
        ids: NDArray[np.int64] = found.tensors["ids"]
    if ids.shape != (removed.ids,) or ids.dtype != np.int64:
        reason = "ids of another shape or dtype"
        raise CheckpointDamagedError(path=str(path), reason=reason)
    return ids


def read_part(directory: Path, file: SavedFile, spec: TableSpec) -> FilePart:
    """Read one file and prove that it is the one that was saved.

    It takes as much memory as its rows do: a longer file isn't read.

    Raises:
        CheckpointDamagedError: if it is missing, or its length, SHA-256 or contents
            are not as the manifest says.
    """
    path = directory / file.name
    with _damage_named(path):
        _check_length(file, spec)
        found = read_tensors(path, num_bytes=file.bytes, sha256=file.sha256)
        part = _part_of(found, file, spec)
        _check_content(part, spec)
        return part


def map_part(directory: Path, file: SavedFile, spec: TableSpec) -> FilePart:
    """Map one file into memory, and prove that it is the one that was saved.

    Its arrays are views, read when they are looked at; states have the columns of the file,
    which ``arranged`` puts into those of the rule. Only shapes and dtypes are compared.

    Raises:
        CheckpointDamagedError: if it is missing, or its length, SHA-256 or shapes are not as
            the manifest says.
    """
    path = directory / file.name
    with _damage_named(path):
        _check_length(file, spec)
        found = map_proven(path, num_bytes=file.bytes, sha256=file.sha256)
        return _shaped_part(found, file, spec)


def map_arrays(directory: Path, saved: SavedModule) -> dict[str, NDArray[Any]]:
    """Map the file of a model's state, and prove that it is the one that was saved.

    Raises:
        CheckpointDamagedError: if it is missing, or its length or SHA-256 is another.
    """
    path = directory / saved.file
    with _damage_named(path):
        return map_proven(path, num_bytes=saved.bytes, sha256=saved.sha256).tensors


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Name the file in an error.

    Raises:
        CheckpointDamagedError: if the system refuses, or the contents are wrong.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointDamagedError(path=str(path), reason=str(error)) from error
    except (KeyError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else f"{error!r}"
        raise CheckpointDamagedError(path=str(path), reason=reason) from error


def _rows_of(tables: Iterable[SavedTable], files: Iterable[SavedFile]) -> dict[str, int]:
    """Return how many rows the files of each sparse table have together."""
    rows = {table.spec.name: 0 for table in tables if table.spec.kind == "sparse"}
    for file in files:
        if file.table in rows:
            rows[file.table] += file.rows
    return rows


def _stated_rows(tables: Iterable[SavedTable], stated: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows a manifest says that each sparse table has.

    Raises:
        KeyError: if it doesn't say it of a table.
        TypeError: if it can't be read at all.
        ValueError: if it is no number of rows.
    """
    return {name: whole(stated[name], "rows") for name in _rows_of(tables, ())}


def _broken_rule(manifest: Manifest, rows: Mapping[str, int]) -> str:
    """Return what is wrong with the lists of a manifest; empty if nothing is."""
    tables, files = manifest.tables, manifest.files
    known = {table.spec.name: table.spec.kind for table in tables}
    if len(known) != len(tables):
        return "names a table twice"
    removed = () if manifest.increment is None else manifest.increment.removed
    names = {file.name for file in files} | {each.name for each in removed}
    if len(names) != len(files) + len(removed):
        return "names a file twice"
    for file in files:
        if known.get(file.table) != file.kind:
            return f"file {file.name!r} belongs to no {file.kind} table {file.table!r}"
    for each in removed:
        if known.get(each.table) != "sparse":
            return f"file {each.name!r} belongs to no sparse table {each.table!r}"
    for name, found in _rows_of(tables, files).items():
        if (lacking := rows.get(name, 0) - found) > 0:
            return f"the files of table {name!r} lack {lacking} rows"
    return ""


def _columns_in(file: SavedFile, spec: TableSpec) -> tuple[Columns, int]:
    """Return the columns of state that a file holds, and their widths together."""
    columns = columns_of(spec) if file.columns is None else file.columns
    return columns, sum(width for _, width in columns)


def _check_length(file: SavedFile, spec: TableSpec) -> None:
    """Pass if a file is no longer than its rows make it.

    Raises:
        ValueError: if it is.
    """
    _, width = _columns_in(file, spec)
    row_bytes = 4 * (1 + width)
    if spec.kind == "sparse":
        row_bytes = 8 + 4 * (spec.dim + width)
    if file.bytes > file.rows * row_bytes + _MAX_HEADER_BYTES:
        problem = (
            f"its {file.bytes} bytes in the manifest are more than those of {file.rows} rows, "
            f"{row_bytes} each"
        )
        raise ValueError(problem)


def _shaped_part(found: TensorFile, file: SavedFile, spec: TableSpec) -> FilePart:
    """Return a file's arrays, as it has them.

    Raises:
        KeyError: if one is missing.
        ValueError: if one has another shape or dtype.
    """
    tensors, metadata = found
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    _, width = _columns_in(file, spec)
    if spec.kind == "sparse":
        part = FilePart(values=tensors["values"], states=tensors["states"], ids=tensors["ids"])
        shapes = ((file.rows, spec.dim), (file.rows, width))
        if tensors["ids"].shape != (file.rows,) or tensors["ids"].dtype != np.int64:
            raise ValueError("ids of another shape or dtype")
    else:
        start, stop = int(metadata["start"]), int(metadata["stop"])
        part = FilePart(values=tensors["values"], states=tensors["states"], start=start)
        shapes = ((file.rows,), (width, file.rows))
        if not 0 <= start <= stop <= spec.size or stop - start != file.rows:
            raise ValueError("a range outside the table")
    if (part.values.shape, part.states.shape) != shapes:
        raise ValueError("values or states of another shape")
    if part.values.dtype != np.float32 or part.states.dtype != np.float32:
        raise ValueError("values or states of another dtype")
    return part


def _part_of(found: TensorFile, file: SavedFile, spec: TableSpec) -> FilePart:
    """Return a file's arrays, its states in the columns that the rule has now.

    Raises:
        KeyError: if one is missing.
        ValueError: if one has another shape or dtype.
    """
    part = _shaped_part(found, file, spec)
    columns, _ = _columns_in(file, spec)
    return replace(part, states=arranged(spec, columns, part.states))


def _check_content(part: FilePart, spec: TableSpec) -> None:
    """Pass if a file's numbers are such as training makes, and no id is there twice.

    Raises:
        ValueError: if they aren't.
    """
    if part.ids is not None and len(each_once(part.ids)) != part.num_rows:
        raise ValueError("an id is there twice")
    wrong = check_rows(spec.optimizer, part.values, part.states)
    if wrong is not None:
        raise ValueError(wrong)
