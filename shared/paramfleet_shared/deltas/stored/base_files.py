"""The folder of a base: a file of rows for each table, dense parameters, and the manifest.

The manifest is written last. It lists each file with its length and SHA-256, and what the
manifest itself is, by its SHA-256, ``stream.json`` says.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.errors import BaseDamagedError, StreamUnreadableError
from paramfleet_shared.deltas.records import BaseTable, OpenedBase, StreamTable
from paramfleet_shared.deltas.stored.head import (
    MANIFEST,
    is_digest,
    moment_of,
    refuse_link,
)
from paramfleet_shared.deltas.stored.schema import (
    MAX_DENSE_NAME,
    StreamSchema,
    checked_dense,
)
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.documents import read_content, read_document, whole
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import checked_rows
from paramfleet_shared.files.tensorfile import map_proven
from paramfleet_shared.values.texts import shown

__all__ = ["DENSE", "BaseManifest", "ListedTable", "open_base", "read_manifest"]

DENSE = "dense.safetensors"
"""Of dense parameters; it has no tensor where there are none."""

_FORMAT, _VERSION = "paramfleet-base", 1
_MAX_DIMENSIONS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTable:
    """A table of a base."""

    table: StreamTable
    rows: int
    """n: how many ids have one."""
    file: ListedFile


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseManifest:
    """What a base consists of."""

    stream: str
    number: int
    moment: float
    digest: str
    """SHA-256 of the file of change ``number``; empty if that is 0."""

    tables: Mapping[str, ListedTable]
    """By name."""
    dense: Mapping[str, tuple[int, ...]]
    """Shapes of dense parameters, by name."""
    dense_file: ListedFile

    @property
    def schema(self) -> StreamSchema:
        """Return what all files of the stream have in common."""
        return StreamSchema(
            {name: listed.table for name, listed in self.tables.items()}, self.dense
        )

    def to_bytes(self) -> bytes:
        """Return the manifest's content."""
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "stream": self.stream,
            "number": self.number,
            "moment": self.moment,
            "digest": self.digest,
            "tables": [
                {**listed.table.to_wire(), "rows": listed.rows, "file": asdict(listed.file)}
                for listed in self.tables.values()
            ],
            "dense": {
                "parameters": {name: list(shape) for name, shape in self.dense.items()},
                "file": asdict(self.dense_file),
            },
        }
        return json.dumps(document, indent=1).encode() + b"\n"


def read_manifest(folder: Path, stream: str, number: int, sha256: str) -> BaseManifest:
    """Return the manifest of a base, proven.

    Args:
        folder: Of the base.
        stream: Whose it is to be.
        number: Which base it is to be.
        sha256: Of the manifest, as ``stream.json`` has it.

    Raises:
        FileNotFoundError: if there is none.
        BaseDamagedError: if it isn't what was written.
        StreamUnreadableError: if the system refuses it.
    """
    path = folder / MANIFEST
    try:
        refuse_link(folder.parent)
        refuse_link(folder)
        content = read_content(path)
        return _proven(content, sha256, stream, number)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StreamUnreadableError(path=str(path), reason=str(error)) from error
    except KeyError as error:
        reason = f"lacks {error}"
    except (TypeError, ValueError, FleetError) as error:
        reason = str(error)
    raise BaseDamagedError(path=str(path), stream=stream, number=number, reason=reason)


def open_base(folder: Path, manifest: BaseManifest, sha256: str) -> OpenedBase:
    """Map the files of a base, each proven as a whole.

    Args:
        folder: Of the base.
        manifest: It.
        sha256: Of the manifest.

    Raises:
        FileNotFoundError: if a file isn't there.
        BaseDamagedError: if one isn't what was written, ids aren't sorted, or a value isn't
            finite.
        StreamUnreadableError: if the system refuses one.
    """
    tables = {}
    path = folder / DENSE
    try:
        for name, listed in manifest.tables.items():
            path = folder / listed.file.name
            tables[name] = BaseTable(listed.table, *_rows(folder, listed))
        path = folder / manifest.dense_file.name
        return OpenedBase(
            stream=manifest.stream,
            number=manifest.number,
            moment=manifest.moment,
            digest=manifest.digest or sha256,
            tables=tables,
            dense=_dense(folder, manifest),
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StreamUnreadableError(path=str(path), reason=str(error)) from error
    except KeyError as error:
        reason = f"has no tensor {error}"
    except ValueError as error:
        reason = str(error)
    raise BaseDamagedError(
        path=str(path), stream=manifest.stream, number=manifest.number, reason=reason
    )


def _rows(folder: Path, listed: ListedTable) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return a table's ids and rows.

    Raises:
        KeyError: if one isn't there.
        OSError: if the system refuses.
        ValueError: if the file isn't what was written, or holds something else.
    """
    shape = listed.rows, listed.table.dim
    return checked_rows(_mapped(folder, listed.file), shape, verify=True)


def _dense(folder: Path, manifest: BaseManifest) -> Mapping[str, NDArray[np.float32]]:
    """Return the dense parameters.

    Raises:
        OSError: if the system refuses.
        ValueError: if the file isn't what was written, or holds something else.
    """
    dense = _mapped(folder, manifest.dense_file)
    if dense.keys() != manifest.dense.keys():
        raise ValueError("its parameters are others than the manifest lists")
    return checked_dense(dense, manifest.schema)


def _mapped(folder: Path, file: ListedFile) -> dict[str, NDArray[Any]]:
    """Return a file's tensors.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't what was written.
    """
    path = folder / file.name
    return map_proven(path, num_bytes=file.bytes, sha256=file.sha256).tensors


def _proven(content: bytes, sha256: str, stream: str, number: int) -> BaseManifest:
    """Return the manifest that bytes have.

    Raises:
        ValueError: if they aren't what was written.
        KeyError: as ``_checked``.
        TypeError: as ``_checked``.
        TableSpecError: as ``_checked``.
    """
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its SHA-256 isn't that of stream.json")
    return _checked(read_document(content), stream, number)


def _checked(document: Any, stream: str, number: int) -> BaseManifest:
    """Return a manifest.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one is of another type.
        ValueError: if one breaks its rule.
        TableSpecError: if a table is described wrongly.
    """
    if (document["format"], document["version"]) != (_FORMAT, _VERSION):
        rule = f"isn't {_FORMAT} version {_VERSION}"
        raise ValueError(rule)
    if (document["stream"], document["number"]) != (stream, number):
        rule = f"is of base {shown(document['number'])} of stream {shown(document['stream'])}"
        raise ValueError(rule)
    digest = document["digest"]
    if not (is_digest(digest) if number else digest == ""):
        raise ValueError("digest isn't that of a change")
    tables = [
        ListedTable(
            table=StreamTable.from_wire(wire),
            rows=whole(wire["rows"], "rows"),
            file=ListedFile.from_wire(wire["file"]),
        )
        for wire in document["tables"]
    ]
    by_name = {listed.table.name: listed for listed in tables}
    if len(by_name) != len(tables):
        raise ValueError("names a table twice")
    parameters = dict(document["dense"]["parameters"])
    return BaseManifest(
        stream=stream,
        number=number,
        moment=moment_of(document["moment"]),
        digest=digest,
        tables=by_name,
        dense={name: _shape(name, shape) for name, shape in parameters.items()},
        dense_file=ListedFile.from_wire(document["dense"]["file"]),
    )


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return a parameter's shape.

    Raises:
        ValueError: if it is none, or the name is none.
    """
    if not 1 <= len(name) <= MAX_DENSE_NAME:
        rule = f"parameter {shown(name)} has no name of 1 to {MAX_DENSE_NAME} characters"
        raise ValueError(rule)
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS:
        rule = f"parameter {shown(name)} has no shape of up to {_MAX_DIMENSIONS} numbers"
        raise ValueError(rule)
    return tuple(whole(length, "shape") for length in shape)
