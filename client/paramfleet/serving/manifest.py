"""The manifest of an exported model: its files, its tables, and what unknown ids read.

An export is a folder: ``model.pt`` (the dense ``state_dict``), one safetensors file a sparse
table (``ids`` int64 [n], sorted, and ``rows`` float32 [n, D]), and ``manifest.json``, which
names each with its length and SHA-256.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from paramfleet.serving.errors import ExportError
from paramfleet.serving.unknown import Policy
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.documents import read_content, read_document, whole
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.regular_files import write_regular
from paramfleet_shared.tables.spec import InitializerSpec, Storage, TableSpec

__all__ = [
    "FORMAT",
    "MANIFEST",
    "MODEL",
    "ExportManifest",
    "ExportedTable",
    "read_export_manifest",
    "write_export_manifest",
]

MANIFEST, MODEL = "manifest.json", "model.pt"
FORMAT, _VERSION = "paramfleet-export", 1
_MAX_NUMBER = 3.4028234663852886e38
"""Of float32."""

_FIRST_ZEROS = InitializerSpec(kind="zeros")
"""Of ids that nobody has pushed, where a row is made at the first push."""


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

    @classmethod
    def of(
        cls, spec: TableSpec, *, rows: int, unknown: Policy | list[float], file: ListedFile
    ) -> "ExportedTable":
        """Describe a table of the job."""
        return cls(
            name=spec.name,
            dim=spec.dim,
            rows=rows,
            seed=spec.seed,
            initializer=_FIRST_ZEROS if spec.creates_at_push else spec.initializer,
            storage=spec.storage,
            unknown=unknown,
            file=file,
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
            raise ValueError("seed must be an integer")
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
        return cls.of(spec, rows=rows, unknown=unknown, file=file)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportManifest:
    """What an export consists of."""

    model: ListedFile
    tables: dict[str, ExportedTable]
    """By name."""


def write_export_manifest(
    folder: Path, model: ListedFile, tables: Iterable[ExportedTable]
) -> None:
    """Write an export's manifest, and wait until it is on the disk.

    Raises:
        OSError: if the system refuses.
    """
    document = {
        "format": FORMAT,
        "version": _VERSION,
        "model": asdict(model),
        "tables": [asdict(table) for table in tables],
    }
    write_regular(folder / MANIFEST, json.dumps(document, indent=1).encode())


def read_export_manifest(folder: Path) -> ExportManifest:
    """Read an export's manifest.

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
    if stated != (FORMAT, _VERSION):
        rule = (
            f"must be {FORMAT} version {_VERSION}, which fleet.save_inference_model writes; "
            "for a checkpoint, use fleet.load_model"
        )
        raise ExportError(path=str(path), rule=rule)
    try:
        model = ListedFile.from_wire(document["model"])
        listed = [ExportedTable.from_wire(wire) for wire in document["tables"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(path=str(path), rule=f"is malformed: {error!r}") from error
    except FleetError as error:
        raise ExportError(path=str(path), rule=str(error)) from error
    tables = {table.name: table for table in listed}
    if len(tables) != len(listed):
        raise ExportError(path=str(path), rule="names a table twice")
    return ExportManifest(model=model, tables=tables)


def _is_row(value: Any, dim: int) -> bool:
    return type(value) is list and len(value) == dim and all(_is_finite(n) for n in value)


def _is_finite(number: Any) -> bool:
    return type(number) in {int, float} and abs(number) <= _MAX_NUMBER
