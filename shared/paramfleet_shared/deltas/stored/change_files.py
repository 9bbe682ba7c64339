"""The file of a change: a safetensors file whose metadata say which change it is.

Its tensors are ``ids/<table>`` int64 [n], ``rows/<table>`` float32 [n, D] and
``removed/<table>`` int64 [m] of each table that has changed, and ``dense/<parameter>``.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.chain import Link
from paramfleet_shared.deltas.records import Change, TableChange
from paramfleet_shared.deltas.stored.head import (
    MOST_NUMBER,
    is_digest,
    is_identity,
    moment_of,
)
from paramfleet_shared.deltas.stored.schema import StreamSchema, checked_dense, checked_table
from paramfleet_shared.files.documents import read_document, whole
from paramfleet_shared.files.tensorfile import (
    PIECE_BYTES,
    TensorFile,
    Written,
    map_proven,
    pieces_of,
    put_tensors,
    read_metadata,
    read_tensors,
)
from paramfleet_shared.values.texts import shown

__all__ = [
    "StoredChange",
    "check_payload",
    "is_whole",
    "put_change",
    "read_change",
    "read_link",
]

_FORMAT, _VERSION = "paramfleet-delta", "1"
_PARTS = ("ids", "rows", "removed")
_MAX_DIGITS = 24
"""Of a number in metadata, where all values are texts."""


class StoredChange(NamedTuple):
    """What the file of a change holds."""

    change: Change
    payload: str
    """SHA-256 of the tensors, as the metadata state it."""


def put_change(file: IO[bytes], change: Change, link: Link, schema: StreamSchema) -> Written:
    """Write a change into a file that is open, and empty.

    Args:
        file: It.
        change: What is written; as ``checked_table`` and ``checked_dense`` have it.
        link: Its place in the stream.
        schema: Of the stream.

    Raises:
        OSError: if the system refuses.
    """
    tensors: dict[str, NDArray[Any]] = {f"dense/{n}": v for n, v in change.dense.items()}
    for name, table in change.tables.items():
        tensors |= {f"{part}/{name}": getattr(table, part) for part in _PARTS}
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "stream": link.stream,
        "number": str(link.number),
        "previous": link.previous,
        "moment": repr(change.moment),
        "tables": json.dumps(schema.digests, sort_keys=True),
        "payload": _payload(tensors),
    }
    return put_tensors(file, tensors, metadata)


def read_link(path: Path) -> Link:
    """Return what a change says of its place, unproven.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't the file of a change.
    """
    return _link(read_metadata(path))


def read_change(
    path: Path, sha256: str, schema: StreamSchema, *, is_mapped: bool = False
) -> StoredChange:
    """Return a change, proven.

    Args:
        path: Its file.
        sha256: Of the whole file.
        schema: Of the stream.
        is_mapped: Whether arrays are views of the mapped file; else they are in memory.

    Raises:
        OSError: if the system refuses.
        ValueError: if the file isn't what was written, or is none that a writer writes.
    """
    num_bytes = path.lstat().st_size
    read = map_proven if is_mapped else read_tensors
    return _checked(read(path, num_bytes=num_bytes, sha256=sha256), schema)


def is_whole(path: Path, schema: StreamSchema) -> bool:
    """Return whether a change's file is as a writer writes it, whatever others say of it."""
    try:
        num_bytes, digest = path.lstat().st_size, hashlib.sha256()
        for piece in pieces_of(path, num_bytes=num_bytes):
            digest.update(piece)
        stored = read_change(path, digest.hexdigest(), schema)
        with Path(os.devnull).open("wb") as nowhere:
            again = put_change(nowhere, stored.change, read_link(path), schema)
    except (OSError, ValueError):
        return False
    return again.sha256 == digest.hexdigest()


def check_payload(stored: StoredChange) -> None:
    """Pass if the tensors of a change are those that its metadata state.

    Raises:
        ValueError: if they aren't.
    """
    change = stored.change
    tensors: dict[str, NDArray[Any]] = {f"dense/{n}": v for n, v in change.dense.items()}
    for name, table in change.tables.items():
        tensors |= {f"{part}/{name}": getattr(table, part) for part in _PARTS}
    if _payload(tensors) != stored.payload:
        raise ValueError("the SHA-256 of its tensors isn't that of its metadata")


def _payload(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of all tensors' bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        for piece in _bytes_of(tensors[name]):
            digest.update(piece)
    return digest.hexdigest()


def _bytes_of(array: NDArray[Any]) -> Iterator[memoryview]:
    if array.nbytes:
        view = np.ascontiguousarray(array).data.cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


def _link(metadata: Mapping[str, str]) -> Link:
    """Return a change's place.

    Raises:
        ValueError: if the metadata aren't those of a change.
    """
    stated = metadata.get("format"), metadata.get("version")
    if stated != (_FORMAT, _VERSION):
        rule = f"its metadata state {shown(stated)}, and not {_FORMAT} version {_VERSION}"
        raise ValueError(rule)
    stream, previous = metadata.get("stream"), metadata.get("previous")
    if not (is_identity(stream) and is_digest(previous)):
        raise ValueError("its metadata lack its stream, or the SHA-256 of what it follows")
    number = whole(_number(metadata.get("number", "")), "number", least=1, most=MOST_NUMBER)
    return Link(str(stream), number, str(previous))


def _number(text: str) -> Any:
    """Return a number that stands in a text.

    Raises:
        ValueError: if it is none.
    """
    if len(text) > _MAX_DIGITS:
        rule = f"{shown(text)} is no number"
        raise ValueError(rule)
    return read_document(text.encode())


def _checked(file: TensorFile, schema: StreamSchema) -> StoredChange:
    """Return the change that a file holds.

    Raises:
        ValueError: if it breaks a rule of the format.
    """
    metadata = file.metadata
    if read_document(metadata.get("tables", "").encode()) != schema.digests:
        raise ValueError("its tables are others than those of the stream's bases")
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    dense: dict[str, NDArray[np.float32]] = {}
    for key, values in file.tensors.items():
        part, _, name = key.partition("/")
        if part == "dense":
            dense[name] = values
        elif part in _PARTS and name in schema.tables:
            parts.setdefault(name, {})[part] = values
        else:
            rule = f"tensor {shown(key)} is of no table of the stream"
            raise ValueError(rule)
    tables = {}
    for name, arrays in parts.items():
        if len(arrays) != len(_PARTS):
            rule = f"table {name!r} lacks one of {', '.join(_PARTS)}"
            raise ValueError(rule)
        try:
            tables[name] = checked_table(TableChange(**arrays), schema.tables[name].dim)
        except ValueError as error:
            rule = f"table {name!r}: {error}"
            raise ValueError(rule) from error
    moment = moment_of(_number(metadata.get("moment", "")))
    change = Change(moment=moment, tables=tables, dense=checked_dense(dense, schema))
    return StoredChange(change, metadata.get("payload", ""))
