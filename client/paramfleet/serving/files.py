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
from paramfleet.serving.manifest import ExportedTable
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.regular_files import open_regular
from paramfleet_shared.files.row_files import are_sorted, checked_rows
from paramfleet_shared.files.tensorfile import map_tensors
from paramfleet_shared.values.texts import shown

__all__ = ["describe_file", "is_extra", "map_removed", "map_rows", "read_state"]


def is_extra(name: str) -> bool:
    """Return whether an entry of a state_dict is a module's extra state: any plain value."""
    return name.rpartition(".")[2] == "_extra_state"


def describe_file(path: Path) -> ListedFile:
    """Wait until a file that was written is on the disk, and describe it.

    Raises:
        OSError: if the system refuses.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ListedFile(name=path.name, bytes=file.tell(), sha256=digest)


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
        tensors = map_tensors(file).tensors
        return checked_rows(tensors, (table.rows, table.dim), verify=verify)


def map_removed(folder: Path, table: ExportedTable) -> NDArray[np.int64]:
    """Return the ids of rows that a delta says were removed: int64 [m], sorted, a view.

    Args:
        folder: Of the export.
        table: Whose; of an export that is no delta there are none.

    Raises:
        ExportDamagedError: if the file is missing, a link, or not what was exported.
    """
    if table.removed is None:
        return np.empty(0, np.int64)
    with _opened(folder, table.removed, verify=True) as file:
        return _checked_ids(map_tensors(file).tensors["ids"])


def read_state(folder: Path, file: ListedFile, *, verify: bool) -> dict[str, Any]:
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
def _opened(folder: Path, file: ListedFile, *, verify: bool) -> Iterator[BufferedReader]:
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


def _prove(opened: BufferedReader, file: ListedFile, *, verify: bool) -> None:
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


def _checked_ids(ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return ids that are as an export has them.

    Raises:
        ValueError: if they aren't.
    """
    if ids.dtype != np.int64 or ids.ndim != 1 or not are_sorted(ids):
        raise ValueError("its ids must be int64, sorted, each once")
    return ids


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


def _is_entry(entry: tuple[Any, Any]) -> bool:
    name, value = entry
    return isinstance(name, str) and (isinstance(value, torch.Tensor) or is_extra(name))
