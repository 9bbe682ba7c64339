"""The manifest of an exported model: its files, its tables, and what unknown ids read.

An export is a folder: ``model.pt`` (the dense ``state_dict``), one safetensors file a sparse
table (``ids`` int64 [n], sorted, and ``rows`` float32 [n, D]), and ``manifest.json``, which
names each with its length and SHA-256. A delta has a file of ids more, for each table of which
rows were removed (``ids`` int64 [m], sorted): a reader drops these first, and then puts its
rows in place.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from paramfleet.serving.errors import ExportError
from paramfleet.serving.unknown import Policy
from paramfleet_shared.checkpoint.increments import is_identity
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.documents import read_content, read_document, whole
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.regular_files import write_regular
from paramfleet_shared.files.row_files import part_from_wire, part_of_row
from paramfleet_shared.tables.spec import ExportKind, InitializerSpec, Storage, TableSpec

__all__ = [
    "FORMAT",
    "MANIFEST",
    "MODEL",
    "ExportManifest",
    "ExportedTable",
    "Release",
    "read_export_manifest",
    "write_export_manifest",
]

MANIFEST, MODEL = "manifest.json", "model.pt"
FORMAT, _VERSION, _OF_DELTAS = "paramfleet-export", 1, 2
_MAX_NUMBER = 3.4028234663852886e38
"""Of float32."""

_FIRST_ZEROS = InitializerSpec(kind="zeros")
"""Where no first value is another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedTable:
    """One sparse table of an export."""

    name: str
    dim: int
    """D: the width of a row."""

    rows: int
    """n: how many ids have one."""

    seed: int
    initializer: InitializerSpec
    """What made the job's first values, of seed, table and id."""

    storage: Storage
    """How the job's pservers keep values; first values are rounded so."""

    unknown: Policy | list[float]
    """What an id without a row reads: a policy, or D numbers that all of them share."""

    file: ListedFile

    drawn: tuple[int, int] | None = None
    """Which of a row's first values the initializer makes, the first one and the end; the
    others are 0. None for all of them."""

    removed: ListedFile | None = None
    """Of a delta: the ids of rows that were removed since the export before."""

    @classmethod
    def of(
        cls,
        spec: TableSpec,
        *,
        rows: int,
        unknown: Policy | list[float],
        file: ListedFile,
        removed: ListedFile | None = None,
    ) -> "ExportedTable":
        """Describe a table of the job."""
        drawn = spec.drawn
        return cls(
            name=spec.name,
            dim=spec.dim,
            rows=rows,
            seed=spec.seed,
            initializer=spec.initializer if drawn else _FIRST_ZEROS,
            storage=spec.storage,
            unknown=unknown,
            file=file,
            drawn=part_of_row(drawn, spec.dim),
            removed=removed,
        )

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ExportedTable":
        """Rebuild what ``asdict`` returned.

        Raises:
            ValueError: if a value breaks its rule.
            KeyError: if a value is missing.
            TypeError: if a value is of another type.
            TableSpecError: if the table is described wrongly.
        """
        seed, unknown = wire["seed"], wire["unknown"]
        if type(seed) is not int:
            raise ValueError("seed must be a whole number")
        spec = TableSpec(
            name=wire["name"],
            kind="sparse",
            dim=whole(wire["dim"], "dim"),
            seed=seed,
            initializer=InitializerSpec(**dict(wire["initializer"])),
            storage=wire["storage"],
        )
        if unknown not in get_args(Policy) and not _is_row(unknown, spec.dim):
            raise ValueError("unknown must be a policy, or a row of the table's width")
        file, rows = ListedFile.from_wire(wire["file"]), whole(wire["rows"], "rows")
        gone = wire.get("removed")
        removed = None if gone is None else ListedFile.from_wire(gone)
        drawn = part_from_wire(wire.get("drawn"), spec.dim)
        whole_row = cls.of(spec, rows=rows, unknown=unknown, file=file, removed=removed)
        return replace(whole_row, drawn=drawn)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values; of what few tables have nothing else."""
        wire = asdict(self)
        for name in ("drawn", "removed"):
            if wire[name] is None:
                del wire[name]
        return wire


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What an export is of a base and the deltas behind it."""

    kind: ExportKind
    export: str
    """Its own identity."""
    base: str
    """The identity of the base; its own, of a base."""
    after: str
    """The identity of the export that a delta follows; empty for a base. A reader that has
    another one lacks something."""
    sequence: int
    """0 of a base, and 1 more of each delta."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Release":
        """Rebuild what ``asdict`` returned.

        Raises:
            ValueError: if a value breaks its rule.
            KeyError: if a value is missing.
            TypeError: if it isn't a map.
        """
        kind, sequence = wire["kind"], whole(wire["sequence"], "sequence")
        export, base, after = wire["export"], wire["base"], wire["after"]
        named = [export, base] if kind == "base" else [export, base, after]
        if kind not in get_args(ExportKind) or not all(map(is_identity, named)):
            raise ValueError("release must be a base or a delta, with identities")
        if kind == "base" and (sequence, base, after) != (0, export, ""):
            raise ValueError("a base follows none")
        return cls(kind=kind, export=export, base=base, after=after, sequence=sequence)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportManifest:
    """What an export consists of."""

    model: ListedFile
    tables: dict[str, ExportedTable]
    """By name."""
    release: Release | None = None
    """What it is of a base and deltas; None for an export of all rows."""


def write_export_manifest(
    folder: Path,
    model: ListedFile,
    tables: Iterable[ExportedTable],
    release: Release | None = None,
) -> None:
    """Write an export's manifest, and wait until it is on the disk.

    Raises:
        OSError: if the system refuses.
    """
    is_delta = release is not None and release.kind == "delta"
    document = {
        "format": FORMAT,
        "version": _OF_DELTAS if is_delta else _VERSION,
        "model": asdict(model),
        "tables": [table.to_wire() for table in tables],
    }
    if release is not None:
        document["release"] = asdict(release)
    write_regular(folder / MANIFEST, json.dumps(document, indent=1).encode())


def read_export_manifest(folder: Path, *, deltas: bool = False) -> ExportManifest:
    """Read an export's manifest.

    Args:
        folder: The export.
        deltas: Whether it may be a delta, which is no model by itself.

    Raises:
        ExportError: if there is none, or it breaks a rule of the format.
    """
    path = folder / MANIFEST
    try:
        document = read_document(read_content(path))
    except (OSError, ValueError) as error:
        rule = f"can't be read: {error}; fleet.save_inference_model writes one"
        raise ExportError(path=str(path), rule=rule) from error
    stated = (document.get("format"), document.get("version")) if type(document) is dict else ()
    if stated == (FORMAT, _OF_DELTAS) and not deltas:
        rule = "is a delta: it holds what changed since another export, and no whole model"
        raise ExportError(path=str(path), rule=rule)
    if stated not in {(FORMAT, _VERSION), (FORMAT, _OF_DELTAS)}:
        rule = (
            f"must be {FORMAT} version {_VERSION}, which fleet.save_inference_model writes; "
            "for a checkpoint, use fleet.load_model"
        )
        raise ExportError(path=str(path), rule=rule)
    try:
        model = ListedFile.from_wire(document["model"])
        listed = [ExportedTable.from_wire(wire) for wire in document["tables"]]
        release = _release_of(document)
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(path=str(path), rule=f"is malformed: {error!r}") from error
    except FleetError as error:
        raise ExportError(path=str(path), rule=str(error)) from error
    tables = {table.name: table for table in listed}
    if len(tables) != len(listed):
        raise ExportError(path=str(path), rule="names a table twice")
    return ExportManifest(model=model, tables=tables, release=release)


def _release_of(document: Mapping[str, Any]) -> Release | None:
    """Return what an export is of a base and deltas.

    Raises:
        KeyError: if a value is missing.
        TypeError: if it isn't a map.
        ValueError: if a value breaks its rule.
    """
    told = document.get("release")
    release = None if told is None else Release.from_wire(told)
    is_delta = release is not None and release.kind == "delta"
    if is_delta != (document["version"] == _OF_DELTAS):
        raise ValueError("a delta, and nothing else, has version 2")
    return release


def _is_row(value: Any, dim: int) -> bool:
    return type(value) is list and len(value) == dim and all(_is_finite(n) for n in value)


def _is_finite(number: Any) -> bool:
    return type(number) in {int, float} and abs(number) <= _MAX_NUMBER
