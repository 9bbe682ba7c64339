"""A table is read from what torch.distributed.checkpoint has written."""

import io
import pickle  # noqa: TID251 -- what torch writes
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save

from paramfleet_shared.checkpoint.saved_rows import load_rows
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.checkpoints import torch_dcp
from paramfleet_worker.app.checkpoints.foreign_rows import ForeignTableError
from paramfleet_worker.app.checkpoints.pickled import (
    Made,
    Name,
    NotPlainError,
    read_pickled,
)
from paramfleet_worker.app.checkpoints.torch_dcp import read_dcp

Write = Callable[..., Path]
KEY = "model.sparse.ebc.embedding_bags.ads.weight"


def saved(folder: Path, **tensors: torch.Tensor) -> Path:
    """Write a checkpoint as one process of a job does."""
    bags = {name: {"weight": tensor} for name, tensor in tensors.items()}
    state = {"model": {"sparse": {"ebc": {"embedding_bags": bags}}}, "step": 7, "lr": [0.1]}
    with warnings.catch_warnings(action="ignore"):  # that there is one process
        save(state, checkpoint_id=folder, no_dist=True)
    return folder


def in_chunks(folder: Path, tensor: torch.Tensor, chunks: list[tuple[slice, slice]]) -> Path:
    """Write a checkpoint as several processes do, each with some parts of a tensor."""
    folder.mkdir()
    listed, places = [], {}
    for number, part in enumerate(chunks):
        own = tensor[part].clone()
        file = io.BytesIO()
        torch.save(own, file)
        name, before = f"__{number % 2}_0.distcp", b""
        if (folder / name).exists():
            before = (folder / name).read_bytes()
        (folder / name).write_bytes(before + file.getvalue())
        offsets = torch.Size([part[0].start, part[1].start])
        listed.append(ChunkStorageMetadata(offsets=offsets, sizes=own.shape))
        place = _StorageInfo(name, len(before), len(file.getvalue()))
        places[MetadataIndex(KEY, offsets)] = place
    properties = TensorProperties(dtype=tensor.dtype)
    about = {KEY: TensorStorageMetadata(properties, tensor.shape, listed)}
    metadata = Metadata(state_dict_metadata=about, storage_data=places)  # type: ignore[arg-type]  # torch's own union
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def read(folder: Path, key: str = "ads", dim: int = 2) -> Any:
    """Return all ids and values."""
    pieces = list(read_dcp(folder, key, dim=dim))
    return (
        np.concatenate([each.ids for each in pieces]),
        np.concatenate([each.values for each in pieces]),
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_a_row_has_its_number_as_id(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.linspace(-3, 3, 14).reshape(7, 2).to(dtype)
    folder = saved(tmp_path / "c", ads=tensor, users=torch.ones(3, 4))

    ids, values = read(folder)

    assert ids.tolist() == list(range(7))
    np.testing.assert_array_equal(values, tensor.float().numpy())
    np.testing.assert_array_equal(read(folder, KEY)[1], values)


@pytest.mark.parametrize("piece_rows", [1, 3, 1000])
@pytest.mark.parametrize(
    "chunks",
    [
        [(slice(0, 4), slice(0, 3)), (slice(4, 9), slice(0, 3))],
        [(slice(0, 9), slice(0, 1)), (slice(0, 9), slice(1, 3))],
        [(slice(5, 9), slice(0, 3)), (slice(0, 5), slice(2, 3)), (slice(0, 5), slice(0, 2))],
    ],
    ids=["by rows", "by columns", "by both"],
)
def test_chunks_of_several_processes_are_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int, chunks: Any
) -> None:
    monkeypatch.setattr(torch_dcp, "PIECE_ROWS", piece_rows)
    tensor = torch.arange(27.0).reshape(9, 3)
    ids, values = read(in_chunks(tmp_path / "c", tensor, chunks), dim=3)

    assert ids.tolist() == list(range(9))
    np.testing.assert_array_equal(values, tensor.numpy())


@pytest.mark.parametrize(
    ("key", "dim", "rule"),
    [
        ("nobody", 2, "no tensor [R, D] of this name: 'model.sparse"),
        ("weight", 2, "several tensors that this names"),
        ("ads", 3, "its rows have 2 numbers, and those of the table 3: name another"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, key: str, dim: int, rule: str
) -> None:
    folder = saved(tmp_path / "c", ads=torch.ones(3, 2), users=torch.ones(3, 2))
    with pytest.raises(ForeignTableError) as refused:
        read(folder, key, dim)
    assert rule in str(refused.value)


def test_a_row_that_no_chunk_has_is_named(tmp_path: Path) -> None:
    tensor = torch.ones(6, 2)
    folder = in_chunks(tmp_path / "c", tensor, [(slice(0, 4), slice(0, 2))])
    with pytest.raises(
        ForeignTableError,
        match=r"numbers of row 4 of .* are in none of its chunks: copy all files",
    ):
        read(folder)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, 1).permute(1, 0, 2)[:, :, 0]],
)
def test_numbers_of_another_kind_are_named(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(ForeignTableError, match="a chunk of it"):
        read(saved(tmp_path / "c", ads=tensor))


def test_what_a_pickle_would_call_is_not_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    folder = saved(tmp_path / "c", ads=torch.ones(2, 2))
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ForeignTableError, match=r"isn't the metadata of torch|isn't read"):
        read(folder)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/b", "", ".."])
def test_chunks_are_beside_the_metadata(tmp_path: Path, name: str) -> None:
    folder = in_chunks(tmp_path / "c", torch.ones(2, 2), [(slice(0, 2), slice(0, 2))])
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (index,) = metadata.storage_data
    metadata.storage_data[index] = _StorageInfo(name, 0, 100)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ForeignTableError):
        read(folder)


@given(content=st.binary(max_size=200), at=st.integers(0, 2000), file=st.booleans())
def test_damaged_files_are_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int, file: bool
) -> None:
    folder = saved(tmp_path_factory.mktemp("c") / "c", ads=torch.ones(5, 2))
    path = folder / ("__0_0.distcp" if file else ".metadata")
    whole = bytearray(path.read_bytes())
    whole[at % len(whole) : at % len(whole) + len(content)] = content
    path.write_bytes(whole)
    try:
        ids, values = read(folder)
    except ForeignTableError as error:
        assert str(folder) in str(error)  # noqa: PT017 -- either is right
    else:
        assert len(ids) == len(values)


@given(st.binary(max_size=80))
def test_any_bytes_are_plain_data_or_not(text: bytes) -> None:
    try:
        read_pickled(text)
    except NotPlainError as error:
        assert str(error)  # noqa: PT017 -- either is right


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.tuples(inner, inner, inner, inner)
            | st.dictionaries(st.text(), inner)
        ),
        max_leaves=30,
    ),
    st.sampled_from([2, 3, 4, 5]),
)
def test_plain_data_is_read_as_pickle_does(value: Any, protocol: int) -> None:
    assert read_pickled(pickle.dumps(value, protocol=protocol)) == value


def test_names_stay_names_and_objects_what_they_are_made_of() -> None:
    assert read_pickled(pickle.dumps(zipfile.ZipFile)) == Name("zipfile", "ZipFile")
    made = read_pickled(pickle.dumps(Path("a/b")))
    assert isinstance(made, Made)
    assert made.of == Name("pathlib", "PosixPath")


def test_the_command_takes_a_tensor_by_the_tables_name_or_by_a_key(
    write: Write, tmp_path: Path
) -> None:
    tensor = torch.arange(8.0).reshape(4, 2)
    source = saved(tmp_path / "c", ads=tensor, rows=-tensor)
    words = ["checkpoint", "import", str(source), "--format=dcp", "--table=ads"]
    words += [f"--into={write()}"]

    said = CliRunner().invoke(main, [*words, f"--output={tmp_path / 'one'}"])
    other = CliRunner().invoke(
        main, [*words, "--key=embedding_bags.rows", f"--output={tmp_path / 'two'}"]
    )

    assert said.exit_code == other.exit_code == 0, said.stderr + other.stderr
    for name, expected in (("one", tensor), ("two", -tensor)):
        found = load_rows(tmp_path / name, "ads")
        order = np.argsort(found.ids)
        assert found.ids[order].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(found.rows[order], expected.numpy())
