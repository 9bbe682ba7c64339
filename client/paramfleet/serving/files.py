"""The files of an export: opened without following links, proved, and mapped into memory."""

import hashlib
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.serving.errors import ExportDamagedError
from paramfleet.serving.manifest import ExportedFile, ExportedTable
from paramfleet_shared.files.regular_files import open_regular
from paramfleet_shared.files.tensorfile import map_tensors
from paramfleet_shared.values.texts import shown

__all__ = ["describe_file", "is_extra", "map_rows", "read_state"]

_PIECE_IDS = 1 << 20


def is_extra(name: str) -> bool:
    """Return whether an entry of a state_dict is a module's extra state: any plain value."""
    return name.rpartition(".")[2] == "_extra_state"


def describe_file(path: Path) -> ExportedFile:
    """Wait until a file that was written is on the disk, and describe it.

    Raises:
        OSError: if the system refuses.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ExportedFile(name=path.name, bytes=file.tell(), sha256=digest)


def map_rows(
    folder: Path, table: ExportedTable, *, verify: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Map a table's file into memory: ids int64 [n], sorted, and rows float32 [n, D].

    Both are read-only views of the file.

    Args:
        folder: Of the export.
        table: Whose.
        verify: Whether the whole file is read to prove its SHA-256, the ids' order, and that
            all rows are finite.

    Raises:
        ExportDamagedError: if it is missing, a link, or not what was exported.
    """
    with _opened(folder, table.file, verify=verify) as file:
        return _checked_rows(map_tensors(file).tensors, table, verify=verify)


def read_state(folder: Path, file: ExportedFile, *, verify: bool) -> dict[str, Any]:
    """Read dense parameters, buffers and extra states, into the host's memory.

    Args:
        folder: Of the export.
        file: The manifest's ``model``.
        verify: Whether to prove its SHA-256.

    Raises:
        ExportDamagedError: if it is missing, a link, or not what was exported.
    """
    with _opened(folder, file, verify=verify) as opened:
        return _checked_state(opened)


@contextmanager
def _opened(folder: Path, file: ExportedFile, *, verify: bool) -> Iterator[BufferedReader]:
    """Open a file of the manifest, proved; errors of the body are those of the file.

    Raises:
        ExportDamagedError: naming the file.
    """
    path = folder / file.name
    try:
        with open_regular(path) as opened:
            _prove(opened, file, verify=verify)
            yield opened
    except (OSError, KeyError, ValueError) as error:
        reason = f"has no tensor {error}" if isinstance(error, KeyError) else str(error)
        raise ExportDamagedError(path=str(path), reason=reason) from error


def _prove(opened: BufferedReader, file: ExportedFile, *, verify: bool) -> None:
    """Compare an open file with what the manifest says of it.

    Raises:
        ValueError: if it is another.
    """
    status = os.fstat(opened.fileno())
    if status.st_size != file.bytes:
        problem = f"has {status.st_size} bytes, and {file.bytes} in the manifest"
        raise ValueError(problem)
    if verify and hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
        raise ValueError("its SHA-256 isn't that of the manifest")
    opened.seek(0)


def _checked_rows(
    tensors: dict[str, NDArray[Any]], table: ExportedTable, *, verify: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return a table's ids and rows.

    Raises:
        KeyError: if one isn't there.
        ValueError: if one has another shape or dtype, or the ids aren't sorted.
    """
    ids, rows = tensors["ids"], tensors["rows"]
    if (ids.shape, rows.shape) != ((table.rows,), (table.rows, table.dim)):
        problem = (
            f"ids {list(ids.shape)} and rows {list(rows.shape)} have other shapes than in the "
            f"manifest, [{table.rows}] and [{table.rows}, {table.dim}]"
        )
        raise ValueError(problem)
    if ids.dtype != np.int64 or rows.dtype != np.float32:
        raise ValueError("ids must be int64 and rows float32")
    if verify and not _are_sorted(ids):
        raise ValueError("its ids aren't sorted, each once")
    if verify and not _are_finite(rows):
        raise ValueError("its rows hold infinities or NaN")
    return ids, rows


def _checked_state(file: BufferedReader) -> dict[str, Any]:
    """Return the tensors of a state_dict.

    Raises:
        ValueError: if the file holds anything else, or takes more memory than its length.
    """
    try:
        _check_records(file)
        state = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - tensors only: nothing is run
    except Exception as error:
        problem = f"isn't a file of tensors: {type(error).__name__}: {error}"
        raise ValueError(problem) from error
    if not isinstance(state, dict) or not all(map(_is_entry, state.items())):
        raise ValueError("isn't a state_dict of tensors")
    return dict(state)


def _check_records(file: BufferedReader) -> None:
    """Pass if a zip file has its bytes as they are, each in one record, as torch writes them.

    Then what is read takes no more memory than the file has bytes.

    Raises:
        ValueError: if a record is compressed, or two share bytes.
        BadZipFile: if it is no zip file.
    """
    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
    for record in records:
        if (
            record.compress_type != zipfile.ZIP_STORED
            or record.compress_size != record.file_size
        ):
            problem = f"its record {shown(record.filename)} is compressed"
            raise ValueError(problem)
    if sum(record.file_size for record in records) > length:
        raise ValueError("its records have more bytes than the file")
    file.seek(0)


def _are_sorted(ids: NDArray[np.int64]) -> bool:
    """Return whether each id is above the one before, looked at in pieces."""
    for start in range(0, len(ids), _PIECE_IDS):
        piece = ids[start : start + _PIECE_IDS + 1]
        if not (piece[1:] > piece[:-1]).all():
            return False
    return True


def _are_finite(rows: NDArray[np.float32]) -> bool:
    """Return whether all values are, looked at in pieces."""
    values = rows.reshape(-1)
    starts = range(0, len(values), _PIECE_IDS)
    return all(bool(np.isfinite(values[at : at + _PIECE_IDS]).all()) for at in starts)


def _is_entry(entry: tuple[Any, Any]) -> bool:
    name, value = entry
    return isinstance(name, str) and (isinstance(value, torch.Tensor) or is_extra(name))
