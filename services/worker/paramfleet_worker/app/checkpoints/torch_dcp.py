"""A table in a checkpoint of torch.distributed.checkpoint, as TorchRec's trainers write them.

Its ``.metadata`` says of each tensor which part of it is where: chunks, of some rows and some
columns, each in a file of its own kind in the files ``*.distcp``. What pickle wrote of that is
read as data. Torch isn't needed.

Source: PyTorch, ``torch/distributed/checkpoint/metadata.py`` and ``filesystem.py``.

Shape legend: R = rows of the tensor, D = its width.
"""

import zipfile
from collections.abc import Iterator, Mapping
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, override

from paramfleet_shared.files.regular_files import open_regular, read_regular
from paramfleet_shared.values.texts import shown
from paramfleet_worker.app.checkpoints.foreign_rows import OTHER_TABLE, ForeignRows, refuse
from paramfleet_worker.app.checkpoints.pickled import (
    MAX_BYTES,
    Made,
    Name,
    NotPlainError,
    read_pickled,
)

__all__ = ["read_dcp"]

PIECE_ROWS = 1 << 16
"""Rows that are read at a time."""

_METADATA = ".metadata"
_MODULE = "torch.distributed.checkpoint.metadata"

_TYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
}
"""By torch's storages; the bits of bfloat16 as whole numbers."""

_MAX_NAMED = 8
"""Tensors that an error names."""


class _Chunk(NamedTuple):
    """A part of a tensor."""

    rows: range
    columns: range
    name: str
    """Of its file."""
    offset: int
    """Where in that it begins, in bytes."""
    length: int


class _Tensor(NamedTuple):
    """One tensor of two dimensions."""

    key: str
    num_rows: int
    chunks: list[_Chunk]


def read_dcp(folder: Path, key: str, *, dim: int) -> Iterator[ForeignRows]:
    """Yield the rows of a table; a row's id is its number.

    Args:
        folder: The checkpoint.
        key: The tensor's whole name, or its last part or the one before ``weight``.
        dim: D of the table that they are for.

    Raises:
        ForeignTableError: naming the file, and what of it is wrong.
    """
    tensor = _tensor_of(folder, key, dim)
    parts = [(chunk, _values_of(folder, chunk)) for chunk in tensor.chunks]
    parts.sort(key=lambda each: each[0].rows.start)
    for start in range(0, tensor.num_rows, PIECE_ROWS):
        stop = min(start + PIECE_ROWS, tensor.num_rows)
        values = np.empty((stop - start, dim), np.float32)
        is_there = np.zeros((stop - start, dim), np.bool_)
        for chunk, kept in parts:
            rows = range(max(start, chunk.rows.start), min(stop, chunk.rows.stop))
            if rows:
                inside = slice(rows.start - chunk.rows.start, rows.stop - chunk.rows.start)
                where = (
                    slice(rows.start - start, rows.stop - start),
                    slice(chunk.columns.start, chunk.columns.stop),
                )
                values[where] = _floats(kept[inside])
                is_there[where] = True
        if not is_there.all():
            row = start + int(np.flatnonzero(~is_there.all(axis=1))[0])
            rule = f"numbers of row {row} of {shown(tensor.key)} are in none of its chunks"
            refuse(folder, f"{rule}: copy all files of the checkpoint, or save it again")
        yield ForeignRows(folder, np.arange(start, stop), values)


def _tensor_of(folder: Path, key: str, dim: int) -> _Tensor:
    """Return the tensor that a key names, and where its chunks are."""
    path = folder / _METADATA
    try:
        content = read_regular(path, most_bytes=MAX_BYTES + 1, may_be_link=True)
        if len(content) > MAX_BYTES:
            refuse(path, f"has more than {MAX_BYTES:,} bytes")
        said = read_pickled(content)
    except (OSError, ValueError) as error:
        refuse(path, f"can't be read: {error}")
    tensors = _mapping(path, said, "Metadata", "state_dict_metadata")
    tables = {name: each for name, each in tensors.items() if _is_table(name, each)}
    ends = (f".{key}.weight", f".{key}")
    found = [name for name in tables if name == key or name.endswith(ends)]
    if len(found) != 1:
        names = ", ".join(map(shown, sorted(found or tables)[:_MAX_NAMED])) or "none"
        what = "several tensors that this names" if found else "no tensor [R, D] of this name"
        refuse(path, f"{shown(key)}: has {what}: {names}; say --key with a whole name")
    (name,) = found
    num_rows, width = _sizes(path, tables[name].attributes.get("size"))
    if width != dim:
        rule = f"{shown(name)}: its rows have {width} numbers, and those of the table {dim}"
        refuse(path, f"{rule}: {OTHER_TABLE}")
    places = _mapping(path, said, "Metadata", "storage_data")
    chunks = _chunks_of(path, places, name, (num_rows, width), tables[name])
    return _Tensor(name, num_rows, chunks)


def _is_table(name: Any, tensor: Any) -> bool:
    """Return whether a state is a tensor of two dimensions."""
    is_tensor = isinstance(tensor, Made) and tensor.of == Name(_MODULE, "TensorStorageMetadata")
    if not isinstance(name, str) or not is_tensor:
        return False
    size = _plain_size(tensor.attributes.get("size"))
    return size is not None and len(size) == 2


def _chunks_of(
    path: Path,
    listed: Mapping[Any, Any],
    name: str,
    shape: tuple[int, int],
    tensor: Made,
) -> list[_Chunk]:
    """Return where the chunks of a tensor are."""
    places = {
        _plain_size(index.attributes.get("offset")): place
        for index, place in listed.items()
        if isinstance(index, Made) and index.attributes.get("fqn") == name
    }
    chunks = tensor.attributes.get("chunks")
    if not isinstance(chunks, list) or not all(isinstance(each, Made) for each in chunks):
        refuse(path, f"{shown(name)} has no chunks")
    found = []
    for each in chunks:
        row, column = _sizes(path, each.attributes.get("offsets"))
        rows, columns = _sizes(path, each.attributes.get("sizes"))
        if row + rows > shape[0] or column + columns > shape[1]:
            refuse(path, f"a chunk of {shown(name)} reaches beyond it")
        if rows and columns:
            file, offset, length = _place_of(path, name, places.get((row, column)))
            at = range(row, row + rows), range(column, column + columns)
            found.append(_Chunk(*at, file, offset, length))
    return found


def _place_of(path: Path, name: str, place: Any) -> tuple[str, int, int]:
    """Return the file of a chunk, where in it that begins, and how many bytes it has."""
    if not isinstance(place, Made):
        refuse(path, f"doesn't say where a chunk of {shown(name)} is")
    about = place.attributes
    if about.get("transform_descriptors"):
        refuse(path, f"{shown(name)} is compressed or encrypted: save it without extensions")
    file, offset, length = (about.get(key) for key in ("relative_path", "offset", "length"))
    if type(file) is not str or Path(file).name != file:
        refuse(
            path,
            f"the file of a chunk of {shown(name)} isn't in the same folder: {shown(file)}",
        )
    if type(offset) is not int or type(length) is not int or min(offset, length) < 0:
        refuse(path, f"a chunk of {shown(name)} is nowhere in its file")
    return file, offset, length


def _mapping(path: Path, said: Any, kind: str, name: str) -> Mapping[Any, Any]:
    """Return an attribute of an object, which is a mapping."""
    is_kind = isinstance(said, Made) and said.of == Name(_MODULE, kind)
    found = said.attributes.get(name) if is_kind else None
    if not isinstance(found, dict):
        refuse(path, "isn't the metadata of torch.distributed.checkpoint: name its folder")
    return found


def _plain_size(size: Any) -> tuple[int, ...] | None:
    """Return what a ``torch.Size`` holds; None if it is none."""
    if not isinstance(size, Made) or size.of != Name("torch", "Size"):
        return None
    numbers = (
        size.arguments[0] if isinstance(size.arguments, tuple) and size.arguments else None
    )
    if not isinstance(numbers, tuple | list):
        return None
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in numbers):
        return None
    return tuple(numbers)


def _sizes(path: Path, size: Any) -> tuple[int, int]:
    """Return the two numbers of a size."""
    found = _plain_size(size)
    if found is None or len(found) != 2:
        refuse(path, "has a size that isn't of two dimensions")
    return found[0], found[1]


class _Part(RawIOBase):
    """A part of a file, as a file of its own.

    Args:
        file: The whole.
        offset: Where the part begins.
        length: Its bytes.
    """

    def __init__(self, file: BufferedReader, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length
        self._at = 0

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        start = (0, self._at, self._length)[whence]
        self._at = max(0, start + offset)
        return self._at

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._length - self._at))
        self._file.seek(self._offset + self._at)
        read = self._file.readinto(view[:count])
        self._at += read
        return read


def _values_of(folder: Path, chunk: _Chunk) -> NDArray[Any]:
    """Return the numbers of a chunk as they are kept, mapped: [rows, columns]."""
    path = folder / chunk.name
    shape = len(chunk.rows), len(chunk.columns)
    try:
        with open_regular(path, may_be_link=True) as file:
            part = BufferedReader(_Part(file, chunk.offset, chunk.length))
            with zipfile.ZipFile(part) as archive:
                names = [each for each in archive.namelist() if each.endswith("/data.pkl")]
                if len(names) != 1 or archive.getinfo(names[0]).file_size > MAX_BYTES:
                    refuse(path, "a chunk of it is no tensor that torch has saved")
                kept = _kept_as(path, read_pickled(archive.read(names[0])), shape)
                info = archive.getinfo(f"{names[0].removesuffix('data.pkl')}data/{kept.place}")
                if info.compress_type != zipfile.ZIP_STORED:
                    refuse(path, "a chunk of it is compressed: save it without compression")
                needed = (kept.first + shape[0] * shape[1]) * kept.kind.itemsize
                if info.file_size < needed:
                    refuse(path, f"a chunk of it has {info.file_size} bytes, not {needed}")
                start = chunk.offset + _data_start(part, info.header_offset)
        at = start + kept.first * kept.kind.itemsize
        return np.memmap(path, kept.kind, "r", at, shape)
    except (OSError, zipfile.BadZipFile, NotPlainError, KeyError, ValueError) as error:
        refuse(path, f"a chunk of it can't be read: {error}")


class _Kept(NamedTuple):
    """How a tensor is kept in an archive."""

    kind: np.dtype[Any]
    place: str
    """Of its numbers."""
    first: int
    """Which number of these is its first one."""


def _kept_as(path: Path, said: Any, shape: tuple[int, int]) -> _Kept:
    """Return how a tensor is kept, as torch says it."""
    arguments = said.arguments if isinstance(said, Made) else None
    is_tensor = isinstance(said, Made) and said.of == Name("torch._utils", "_rebuild_tensor_v2")
    if not is_tensor or not isinstance(arguments, tuple) or len(arguments) < 4:
        refuse(path, "a chunk of it is no plain tensor")
    storage, first, size, stride = arguments[:4]
    about = storage.arguments if isinstance(storage, Made) else None
    if not isinstance(about, tuple) or len(about) < 3 or not isinstance(about[1], Name):
        refuse(path, "a chunk of it doesn't say where its numbers are")
    kind = _TYPES.get(about[1].name)
    if kind is None:
        known = ", ".join(each.removesuffix("Storage").lower() for each in _TYPES)
        refuse(path, f"a chunk of it is of {shown(about[1].name)}; read are {known}")
    if size != shape or stride != (shape[1], 1) or type(first) is not int or first < 0:
        refuse(path, f"a chunk of it isn't {list(shape)}, row by row")
    return _Kept(kind, str(about[2]), first)


def _data_start(part: BufferedIOBase, header: int) -> int:
    """Return where the bytes of a stored entry begin: behind its own header."""
    part.seek(header)
    head = part.read(30)
    return (
        header
        + len(head)
        + int.from_bytes(head[26:28], "little")
        + int.from_bytes(head[28:30], "little")
    )


def _floats(kept: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32; those that are whole numbers are the bits of bfloat16."""
    if kept.dtype.kind == "u":
        return (kept.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):  # too large a number becomes infinite, which is refused
        return kept.astype(np.float32)
