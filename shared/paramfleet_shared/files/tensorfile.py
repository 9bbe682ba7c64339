"""safetensors files, written and read in pieces.

The library builds a whole file in memory while it holds the interpreter up: 128 MiB of that
delay every other thread, heartbeats among them. Here a file is copied, hashed and moved in
pieces of ``PIECE_BYTES``, each without the interpreter's lock. The format is
safetensors': u64 length of the header, the header (JSON), then the tensors' bytes.
"""

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_document, whole
from paramfleet_shared.files.regular_files import CREATE, open_regular
from paramfleet_shared.system.memory import machine_memory
from paramfleet_shared.values.texts import shown

__all__ = [
    "MOST_DIMENSIONS",
    "FileMemoryError",
    "TensorFacts",
    "TensorFile",
    "Written",
    "created",
    "map_proven",
    "map_tensors",
    "parse_tensors",
    "pieces_of",
    "proven_pieces",
    "put_pieces",
    "put_tensors",
    "read_metadata",
    "read_tensors",
    "release_pages",
    "tensor_pieces",
    "write_tensors",
]

PIECE_BYTES = 4 << 20

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(f"<{code}")
    for name, code in {
        "F64": "f8", "F32": "f4", "F16": "f2",
        "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1",
    }.items()
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_ALIGNMENT_BYTES = 8
_MAX_HEADER_BYTES = 8 << 20
"""Of a header: some 80,000 tensors. It is read before anything of a file is proven."""

MOST_DIMENSIONS = 32
"""Of an array, in every version of numpy."""


class FileMemoryError(UnavailableError):
    """There is no memory for a file that is read as a whole; the file may be good."""

    code = "unavailable.file_memory"
    path: str
    bytes: int
    reason: str
    sentence = (
        "{path}: there is no memory for its {bytes:,} bytes now: {reason}; end other programs, "
        "or give this one more memory, and try again"
    )


class Written(NamedTuple):
    """What was written."""

    num_bytes: int
    sha256: str


class TensorFacts(NamedTuple):
    """What a tensor is."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return how many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile(NamedTuple):
    """What a file holds."""

    tensors: dict[str, NDArray[Any]]
    metadata: dict[str, str]


def write_tensors(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    mode: int = 0o666,
) -> Written:
    """Write a file, and wait until it is on the disk.

    Args:
        path: The file; replaced if it is there.
        tensors: Arrays of floats, signed integers or bytes by name.
        metadata: What the file says of itself.
        mode: Of a new file, before the umask.

    Raises:
        OSError: if the system refuses.
    """
    with created(path, mode=mode) as file:
        return put_tensors(file, tensors, metadata)


def put_tensors(
    file: IO[bytes], tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> Written:
    """Write what ``write_tensors`` does into a file that is open, and empty.

    Raises:
        OSError: if the system refuses.
    """
    return _put(file, tensor_pieces(tensors, metadata))


def tensor_pieces(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> Iterator[memoryview]:
    """Yield the bytes that ``write_tensors`` writes."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    facts = {name: TensorFacts(array.dtype, array.shape) for name, array in arrays.items()}
    names = _in_order(facts)
    yield _header(facts, names, metadata)
    yield from _pieces(arrays, names)


def put_pieces(
    file: IO[bytes],
    facts: Mapping[str, TensorFacts],
    pieces_of: Callable[[str], Iterable[memoryview]],
    metadata: Mapping[str, str],
) -> Written:
    """Write a file of tensors that are never in memory as a whole.

    Args:
        file: Open, and empty.
        facts: What the tensors are, by name.
        pieces_of: Given a name, the tensor's bytes in pieces; asked for one after the other,
            the widest numbers first, then by name.
        metadata: What the file says of itself.

    Raises:
        OSError: if the system refuses.
        ValueError: if a tensor has another number of bytes than its shape.
    """
    names = _in_order(facts)

    def checked() -> Iterator[memoryview]:
        yield _header(facts, names, metadata)
        for name in names:
            num_bytes = 0
            for piece in pieces_of(name):
                yield piece
                num_bytes += len(piece)
            if num_bytes != facts[name].num_bytes:
                problem = f"tensor {name!r} has {num_bytes} bytes, not {facts[name].num_bytes}"
                raise ValueError(problem)

    return _put(file, checked())


def _put(file: IO[bytes], pieces: Iterable[memoryview]) -> Written:
    """Write a file's bytes.

    Raises:
        OSError: if the system refuses.
    """
    digest, num_bytes = hashlib.sha256(), 0
    for piece in pieces:
        file.write(piece)
        digest.update(piece)
        num_bytes += len(piece)
    return Written(num_bytes, digest.hexdigest())


def read_tensors(path: Path, *, num_bytes: int, sha256: str) -> TensorFile:
    """Read a file and prove that it is the one that was written.

    Raises:
        OSError: if the system refuses.
        FileMemoryError: if there is no memory for it now.
        ValueError: if it isn't a regular file, or length, SHA-256 or contents aren't as they
            must be.
    """
    with _opened(path, num_bytes) as file:
        free = machine_memory().free
        if num_bytes > free:  # what Linux hands out without having it ends the process
            reason = f"{free:,} are free"
            raise FileMemoryError(path=str(path), bytes=num_bytes, reason=reason)
        try:
            content = np.empty(num_bytes, np.uint8)
        except MemoryError as error:
            reason = "the system gives them not (ulimit -v)"
            raise FileMemoryError(path=str(path), bytes=num_bytes, reason=reason) from error
        view, digest, position = content.data, hashlib.sha256(), 0
        while count := file.readinto(view[position : position + PIECE_BYTES]):
            digest.update(view[position : position + count])
            position += count
    if position != num_bytes or digest.hexdigest() != sha256:
        raise ValueError("its SHA-256 is another")
    return _parsed(content)


def read_metadata(path: Path) -> dict[str, str]:
    """Return what a file says of itself, unproven; its tensors aren't looked at.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file, or its header isn't as it must be.
    """
    with ExitStack() as stack:
        if isinstance(path, Address):
            file = stack.enter_context(path.reading())
        else:
            file = stack.enter_context(open_regular(path))
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        length = min(length, _MAX_HEADER_BYTES + 1)
        header = file.read(length)
    if len(header) < length:
        raise ValueError("its header is longer than the file")
    return _described(header)[1]


def map_tensors(file: IO[bytes]) -> TensorFile:
    """Map a file into memory; its tensors are read-only views, read when they are looked at.

    They stay valid when the file is closed, renamed or removed.

    Args:
        file: Of the disk, open for reading.

    Raises:
        OSError: if the system refuses.
        ValueError: if the contents aren't as they must be.
    """
    content: NDArray[np.uint8] = np.memmap(file, np.uint8, mode="r")
    return _parsed(content)


def release_pages(array: NDArray[Any]) -> None:
    """Drop a mapped file from this process's memory; what is read again comes from the file.

    Args:
        array: A view of the file; one of memory stays as it is.
    """
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


def parse_tensors(content: bytes | bytearray) -> TensorFile:
    """Return the tensors of a file that came as bytes, as read-only views of them.

    Raises:
        ValueError: if the contents aren't as they must be.
    """
    return _parsed(np.frombuffer(content, np.uint8))


def map_proven(path: Path, *, num_bytes: int, sha256: str) -> TensorFile:
    """Map a file as ``map_tensors``, and prove that it is the one that was written.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file, or length, SHA-256 or contents aren't as they
            must be.
    """
    with _opened(path, num_bytes) as file, ExitStack() as stack:
        local = None
        if isinstance(path, Address):  # it is mapped from a copy, which goes with the map
            local = stack.enter_context(TemporaryFile())
        digest, piece = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
        while count := file.readinto(piece):
            digest.update(piece[:count])
            if local is not None:
                local.write(piece[:count])
        if digest.hexdigest() != sha256:
            raise ValueError("its SHA-256 is another")
        if local is None:
            return map_tensors(file)
        local.flush()
        return map_tensors(local)


def proven_pieces(path: Path, *, num_bytes: int, sha256: str) -> Iterator[memoryview]:
    """Yield a file's bytes, each piece until the next; at the end they are proven.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file, or length or SHA-256 aren't as they must be.
    """
    digest = hashlib.sha256()
    for piece in pieces_of(path, num_bytes=num_bytes):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != sha256:
        raise ValueError("its SHA-256 is another")


def pieces_of(path: Path, *, num_bytes: int) -> Iterator[memoryview]:
    """Yield a file's bytes, unproven, each piece until the next.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file, or its length isn't as it must be.
    """
    piece = memoryview(bytearray(PIECE_BYTES))
    with _opened(path, num_bytes) as file:
        while count := file.readinto(piece):
            yield piece[:count]


@contextmanager
def created(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file for writing; it is on the disk when the block has ended.

    Args:
        path: The file; replaced if it is there.
        mode: Of a new file, before the umask.

    Raises:
        OSError: if the system refuses.
    """
    if isinstance(path, Address):
        with path.writing() as remote:
            yield remote
        return
    with os.fdopen(os.open(path, CREATE, mode), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened(path: Path, num_bytes: int) -> Iterator[Any]:
    """Open a file of a length for reading.

    Raises:
        OSError: if the system refuses.
        ValueError: if it isn't a regular file, or its length is another.
    """
    if isinstance(path, Address):
        if path.lstat().st_size != num_bytes:
            raise ValueError("its length is another")
        with path.reading() as remote:
            yield remote
        return
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size != num_bytes:
            raise ValueError("its length is another")
        yield file


def _in_order(facts: Mapping[str, TensorFacts]) -> list[str]:
    """Return names as the library has them: the widest numbers first.

    So each tensor starts at a multiple of its numbers' size.
    """
    return sorted(facts, key=lambda name: (-facts[name].dtype.itemsize, name))


def _header(
    facts: Mapping[str, TensorFacts], names: list[str], metadata: Mapping[str, str]
) -> memoryview:
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name in names:
        dtype, shape = facts[name]
        end = position + facts[name].num_bytes
        described[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [position, end],
        }
        position = end
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    return memoryview(len(header).to_bytes(_LENGTH_BYTES, "little") + header)


def _pieces(arrays: Mapping[str, NDArray[Any]], names: Iterable[str]) -> Iterator[memoryview]:
    for name in names:
        array = arrays[name]
        view = array.data.cast("B") if array.nbytes else memoryview(b"")
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


def _described(header: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a header says of tensors, and its metadata.

    Raises:
        ValueError: if it is none.
    """
    described = read_document(header, most_bytes=_MAX_HEADER_BYTES)
    if type(described) is not dict:
        raise ValueError("its header is no map")
    metadata = described.pop("__metadata__", {})
    if type(metadata) is not dict or any(type(value) is not str for value in metadata.values()):
        raise ValueError("its metadata is no map of texts")
    return described, metadata


def _parsed(content: NDArray[np.uint8]) -> TensorFile:
    """Return the tensors of a file as views of it.

    Raises:
        ValueError: if it isn't one.
    """
    begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    if not _LENGTH_BYTES <= begin <= len(content):
        raise ValueError("its header is longer than the file")
    header = content[_LENGTH_BYTES:begin][: _MAX_HEADER_BYTES + 1].tobytes()
    described, metadata = _described(header)
    tensors: dict[str, NDArray[Any]] = {}
    for name, facts in described.items():
        try:
            dtype = _DTYPES[facts["dtype"]]
            shape = [whole(length, "shape") for length in facts["shape"]]
            first, stop = (
                begin + whole(place, "data_offsets") for place in facts["data_offsets"]
            )
        except (KeyError, TypeError, ValueError) as error:
            problem = f"tensor {shown(name)} is described wrongly: {error!r}"
            raise ValueError(problem) from error
        if len(shape) > MOST_DIMENSIONS:
            problem = f"tensor {shown(name)} has more than {MOST_DIMENSIONS} dimensions"
            raise ValueError(problem)
        count = int(np.prod(shape, dtype=object))
        if not begin <= first <= stop <= len(content):
            problem = f"tensor {shown(name)} lies outside the file"
            raise ValueError(problem)
        if stop - first != count * dtype.itemsize:
            problem = f"tensor {shown(name)} has another length than its shape"
            raise ValueError(problem)
        array: NDArray[Any] = np.frombuffer(content, dtype, count, first)
        tensors[name] = np.require(array, requirements="A").reshape(shape)
    return TensorFile(tensors, metadata)
