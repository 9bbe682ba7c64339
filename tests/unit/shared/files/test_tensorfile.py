"""safetensors files, in pieces: the library reads them, and what isn't one is refused."""

import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from paramfleet_shared.files.tensorfile import (
    PIECE_BYTES,
    FileMemoryError,
    TensorFacts,
    parse_tensors,
    put_pieces,
    read_metadata,
    read_tensors,
    tensor_pieces,
    write_tensors,
)


def tensors() -> dict[str, NDArray[Any]]:
    """Return a tensor of several pieces, one without numbers, a number, and every dtype."""
    numbers = np.random.default_rng(0)
    return {
        "values": numbers.standard_normal(PIECE_BYTES // 2 + 5, np.float32),
        "states": np.empty((0, 3), np.float32),
        "ids": numbers.integers(-(1 << 60), 1 << 60, 7),
        "count": np.array(3),
        **{code: np.arange(3).astype(code) for code in ("f8", "f2", "i4", "i2", "i1", "u1")},
    }


def test_what_was_written_is_read_by_the_library_and_by_us(tmp_path: Path) -> None:
    path = tmp_path / "file"

    num_bytes, sha256 = write_tensors(path, tensors(), {"table": "t \u00e9"})

    assert (num_bytes, sha256) == (
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    ours = read_tensors(path, num_bytes=num_bytes, sha256=sha256)
    assert ours.metadata == {"table": "t \u00e9"}
    for found in (load_file(path), ours.tensors):
        assert found.keys() == tensors().keys()
        for name, array in tensors().items():
            np.testing.assert_array_equal(found[name], array, strict=True)
            assert found[name].flags.aligned


def test_a_file_of_the_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(save(tensors(), metadata={"start": "3"}))

    found = read_tensors(
        path,
        num_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )

    assert found.metadata == {"start": "3"}
    for name, array in tensors().items():
        np.testing.assert_array_equal(found.tensors[name], array, strict=True)


def with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{x",
        b'\x41\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'.ljust(80),
        b'\x41\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(80),
        b'\x41\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}'.ljust(80),
        b'\x41\0\0\0\0\0\0\0{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'.ljust(80),
        b'\x41\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}'.ljust(81),
        with_header(b"[" * 100_000),
        with_header(b'{"__metadata__":5}'),
        with_header(b'{"a":{"dtype":"F32","shape":[%s2],"data_offsets":[0,8]}}' % (b"1," * 99)),
        with_header(b'{"__metadata__":["ab"]}'),
        with_header(b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}'),
        with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e400]}}'),
        with_header(b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}'),
        with_header(b'{"a":{"dtype":"F32","shape":[1e3],"data_offsets":[0,8]}}'),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"\w"):
        read_tensors(path, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_another_length_or_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    num_bytes, sha256 = write_tensors(path, tensors(), {})

    with pytest.raises(ValueError, match="length"):
        read_tensors(path, num_bytes=num_bytes + 1, sha256=sha256)
    with pytest.raises(ValueError, match="SHA-256"):
        read_tensors(path, num_bytes=num_bytes, sha256="0" * 64)


def test_a_file_larger_than_the_free_memory_is_refused_before_any_is_taken(
    tmp_path: Path,
) -> None:
    path, num_bytes = tmp_path / "file", 1 << 42
    path.touch()
    os.truncate(path, num_bytes)  # a hole, which takes no place on the disk

    with pytest.raises(FileMemoryError, match=r"no memory for its 4,398,046,511,104 bytes"):
        read_tensors(path, num_bytes=num_bytes, sha256="0" * 64)


def test_a_file_that_the_process_may_have_no_memory_for_is_refused(tmp_path: Path) -> None:
    path, num_bytes = tmp_path / "file", 1 << 30
    path.touch()
    os.truncate(path, num_bytes)

    with (
        memory_of_at_most(num_bytes // 2),
        pytest.raises(FileMemoryError, match=r"its 1,073,741,824 bytes.*ulimit -v"),
    ):
        read_tensors(path, num_bytes=num_bytes, sha256="0" * 64)


@contextmanager
def memory_of_at_most(more_bytes: int) -> Iterator[None]:
    """Let the system refuse to give this process more memory than so much."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    former = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def test_tensors_that_are_never_whole_in_memory_are_written(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    written = write_tensors(whole, {"ids": np.arange(6), "rows": rows}, {"a": "b"})
    facts = {
        "rows": TensorFacts(rows.dtype, rows.shape),
        "ids": TensorFacts(np.dtype(np.int64), (6,)),
    }
    arrays: dict[str, NDArray[Any]] = {"rows": rows, "ids": np.arange(6)}

    def pieces_of(name: str) -> Iterator[memoryview]:
        for at in range(0, 6, 4):
            yield arrays[name][at : at + 4].data.cast("B")

    with pieces.open("wb") as file:
        assert put_pieces(file, facts, pieces_of, {"a": "b"}) == written
    assert pieces.read_bytes() == whole.read_bytes()
    assert b"".join(tensor_pieces(arrays, {"a": "b"})) == whole.read_bytes()
    assert read_metadata(whole) == {"a": "b"}
    np.testing.assert_array_equal(parse_tensors(whole.read_bytes()).tensors["rows"], rows)
    with pieces.open("wb") as file, pytest.raises(ValueError, match="has 0 bytes, not 48"):
        put_pieces(file, facts, lambda _: [], {})


def test_a_header_that_is_none_has_no_metadata(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"\x01", (9).to_bytes(8, "little") + b"{}", bytes(8), b"\xff" * 20):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"header|larger|Expecting"):
            read_metadata(path)
        with pytest.raises(ValueError, match=r"header|larger|Expecting"):
            parse_tensors(content)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="link"):
        read_metadata(path)
