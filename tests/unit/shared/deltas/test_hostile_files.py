"""Files that somebody made on purpose, whose SHA-256 all fit: refused, and nothing is taken."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.unit.shared.deltas.streams import Model, begin, writer_at

from paramfleet_shared.deltas.errors import (
    BaseDamagedError,
    ChangeDamagedError,
    StreamError,
)
from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.deltas.publishing import change_head
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import base_folder, change_file
from paramfleet_shared.files.tensorfile import FileMemoryError, write_tensors
from paramfleet_shared.tables.spec import InitializerSpec
from paramfleet_shared.testing.clock import FakeClock

IDS, ROWS = np.array([1, 5, 9]), np.ones((3, 3), np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer, model = writer_at(tmp_path), Model()
    model.tables["words"] = dict.fromkeys(IDS.tolist(), (1.0, 1.0, 1.0))
    begin(writer, model)
    table = TableChange(IDS, ROWS, np.array([3]))
    w = np.ones((2, 3), np.float32)
    writer.publish(Change(moment=1.0, tables={"words": table}, dense={"w": w}))
    return tmp_path


def set_head(folder: Path, **values: Any) -> None:
    path = folder / "stream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite_change(
    folder: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None
) -> None:
    """Write change 1 again with other tensors, and let ``stream.json`` tell its SHA-256."""
    path = change_file(folder, StreamReader(folder).look().stream, 1)
    with safe_open(path, "numpy") as file:
        former = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        said = dict(file.metadata())
    both = {name: each for name, each in (former | tensors).items() if each is not None}
    written = write_tensors(path, both, said | (metadata or {}))
    set_head(folder, digest=written.sha256)


WRONG_TENSORS: dict[str, dict[str, Any]] = {
    "sorted, each once": {"ids/words": IDS[::-1].copy()},
    "ids and removed must be sorted": {"ids/words": np.array([1, 1, 9])},
    "is removed, too": {"removed/words": np.array([5])},
    "must be finite": {"rows/words": np.full((3, 3), np.inf, np.float32)},
    r"must be \[n\], \[n, 3\]": {"rows/words": np.ones((3, 2), np.float32)},
    r"ids \[3\], rows \[2, 3\]": {"rows/words": np.ones((2, 3), np.float32)},
    r"ids \[1, 3\]": {"ids/words": IDS.reshape(1, 3)},
    r"ids \[\], rows": {"ids/words": np.array(5)},
    r"removed \[\] must": {"removed/words": np.array(5)},
    r"rows \[\] and": {"rows/words": np.array(1.0, np.float32)},
    "int64, and rows float32": {"ids/words": IDS.astype(np.int32)},
    "must be int64": {"rows/words": ROWS.astype(np.float64)},
    "lacks one of": {"removed/words": None},
    "is of no table": {"ids/other": IDS},
    "'more/words' is of no table": {"more/words": IDS},
    "no parameter of the stream": {"dense/v": ROWS},
    r"float32 \[2, 3\]": {"dense/w": ROWS},
    "it holds infinities or NaN": {"dense/w": np.full((2, 3), np.nan, np.float32)},
}


@pytest.mark.parametrize("said", WRONG_TENSORS)
def test_tensors_that_no_writer_writes_are_refused(said: str, folder: Path) -> None:
    rewrite_change(folder, WRONG_TENSORS[said])

    with pytest.raises(ChangeDamagedError, match=said):
        list(StreamReader(folder).changes(0, 1))


def test_a_scalar_in_the_place_of_ids_is_a_problem_that_verify_names(folder: Path) -> None:
    rewrite_change(folder, {"ids/words": np.array(5)})

    (problem,) = verify_stream(folder).problems

    assert "ids [], rows [3, 3]" in problem


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"format": "other"}, "paramfleet-delta"),
        ({"version": "2"}, "version 1"),
        ({"stream": "../../etc"}, "lack its stream"),
        ({"previous": "x"}, "SHA-256 of what it follows"),
        ({"number": "9" * 4000}, "is no number"),
        ({"number": "-1"}, "whole number"),
        ({"number": "0"}, "whole number"),
        ({"number": "[" * 20}, "JSON|Expecting"),
        ({"moment": "NaN"}, "finite"),
        ({"moment": "1e99"}, "seconds since 1970"),
        ({"tables": "{}"}, "its tables are others"),
        ({"tables": "[" * 1000}, "Expecting|deep"),
    ],
)
def test_metadata_that_no_writer_writes_are_refused(
    metadata: dict[str, str], said: str, folder: Path
) -> None:
    rewrite_change(folder, {}, metadata)

    with pytest.raises(ChangeDamagedError, match=said):
        list(StreamReader(folder).changes(0, 1))


def test_a_header_of_any_length_is_refused(folder: Path) -> None:
    path = change_file(folder, StreamReader(folder).look().stream, 1)
    for content in (
        (1 << 62).to_bytes(8, "little") + b"{}",
        (1 << 20).to_bytes(8, "little") + b"{}",
        (6).to_bytes(8, "little") + b'{"a":1',
        (10).to_bytes(8, "little") + b'{"a":"\xff"}  ',
        header({"ids/words": {"dtype": "I64", "shape": [2**40], "data_offsets": [0, 8]}}),
        header({"ids/words": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}}),
        header({"ids/words": {"dtype": "I64", "shape": [1] * 40, "data_offsets": [0, 8]}}),
        header({"ids/words": {"dtype": "I64", "shape": [1], "data_offsets": [0, 2**60]}}),
        header({"ids/words": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}),
    ):
        path.write_bytes(content)
        set_head(folder, digest=hashlib.sha256(content).hexdigest())
        with pytest.raises(ChangeDamagedError):
            list(StreamReader(folder).changes(0, 1))


def header(described: dict[str, Any]) -> bytes:
    text = json.dumps(described).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


def rewrite_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest of base 0, and let ``stream.json`` tell its SHA-256."""
    head = StreamReader(folder).look()
    path = base_folder(folder, head.stream, 0) / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    set_head(folder, bases=[{"number": 0, "sha256": sha256}])


MANIFESTS: dict[str, Callable[[Any], object]] = {
    "isn't paramfleet-base": lambda d: d.update(format="other"),
    "is of base 7": lambda d: d.update(number=7),
    "is of base 0 of stream 'x'": lambda d: d.update(stream="x"),
    "digest isn't": lambda d: d.update(digest="0" * 64),
    "names a table twice": lambda d: d["tables"].append(d["tables"][0]),
    "isn't that of a file of the folder": lambda d: file_of(d).update(name="../stream.json"),
    "file name '/etc/passwd'": lambda d: file_of(d).update(name="/etc/passwd"),
    "file name 7": lambda d: file_of(d).update(name=7),
    "bytes = -1": lambda d: file_of(d).update(bytes=-1),
    "its length is another": lambda d: file_of(d).update(bytes=2**50),
    "its SHA-256 is another": lambda d: file_of(d).update(sha256="0" * 64),
    "other shapes than in the manifest": lambda d: d["tables"][0].update(rows=2**50),
    "rows = 1e": lambda d: d["tables"][0].update(rows=1e300),
    "whole number from": lambda d: d["tables"][0].update(rows=True),
    "dim": lambda d: d["tables"][0].update(dim=0),
    "name": lambda d: d["tables"][0].update(name="../x"),
    "storage": lambda d: d["tables"][0].update(storage="int8"),
    "zero_unknown": lambda d: d["tables"][0].update(zero_unknown=1),
    "a part of a row": lambda d: d["tables"][0].update(drawn=[0, 9]),
    "must be two numbers": lambda d: d["tables"][0].update(drawn=[0, 1.5]),
    "InitializerSpec": lambda d: d["tables"][0].update(initializer={"nosuch": 1}),
    "lacks 'tables'": lambda d: d.pop("tables"),
    "moment": lambda d: d.update(moment="now"),
    "no shape": lambda d: d["dense"]["parameters"].update(w=[1] * 40),
    "has no name": lambda d: d["dense"]["parameters"].update({"": [1]}),
    "others than the manifest lists": lambda d: d["dense"]["parameters"].update(v=[1]),
    r"float32 \[6\]": lambda d: d["dense"]["parameters"].update(w=[6]),
    "nested deeper": lambda d: d.update(more=json.loads("[" * 150 + "]" * 150)),
}


def file_of(document: Any) -> Any:
    return document["tables"][0]["file"]


@pytest.mark.parametrize("said", MANIFESTS)
def test_a_manifest_that_no_writer_writes_is_refused(said: str, folder: Path) -> None:
    rewrite_manifest(folder, MANIFESTS[said])

    with pytest.raises(BaseDamagedError, match=said):
        StreamReader(folder).base()


@pytest.mark.parametrize(
    ("ids", "rows", "said"),
    [
        (IDS[::-1].copy(), ROWS, "sorted"),
        (np.array([1, 1, 9]), ROWS, "each once"),
        (IDS, np.full((3, 3), np.nan, np.float32), "infinities or NaN"),
        (IDS.astype(np.int32), ROWS, "int64"),
        (IDS, ROWS.astype(np.float16), "float32"),
        (IDS, ROWS[:, :2].copy(), "other shapes"),
    ],
)
def test_rows_that_no_writer_writes_are_refused(
    ids: Any, rows: Any, said: str, folder: Path
) -> None:
    own = base_folder(folder, StreamReader(folder).look().stream, 0)
    written = write_tensors(own / "rows.words.safetensors", {"ids": ids, "rows": rows}, {})
    file = {"bytes": written.num_bytes, "sha256": written.sha256}
    rewrite_manifest(folder, lambda document: file_of(document).update(file))

    with pytest.raises(BaseDamagedError, match=said):
        StreamReader(folder).base()


def test_a_document_that_is_too_large_is_refused(folder: Path) -> None:
    own = base_folder(folder, StreamReader(folder).look().stream, 0)
    with (own / "manifest.json").open("wb") as file:
        file.truncate(65 << 20)

    with pytest.raises(BaseDamagedError):
        StreamReader(folder).base()


def test_a_stream_json_that_is_too_large_is_refused(folder: Path) -> None:
    before = json.loads((folder / "stream.json").read_text())
    bases = [{"number": number, "sha256": "0" * 64} for number in range(12_000)]
    set_head(folder, bases=bases, last=12_000, base=11_999)

    with pytest.raises(StreamError, match="larger than 1048576 bytes"):
        StreamReader(folder).look()

    kept = [{"number": number, "sha256": "0" * 64} for number in range(5_000)]
    set_head(folder, **before | {"bases": kept, "last": 5_000, "base": 4_999})
    began = time.process_time()
    assert len(StreamReader(folder).look().bases) == 5_000
    assert time.process_time() - began < 0.1


def test_a_writer_lists_no_more_bases_than_are_read(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    begin(writer, Model())
    many = replace(writer._known(), last=12_000, bases=dict.fromkeys(range(12_000), "0" * 64))

    with pytest.raises(StreamError, match="12000 bases: keep fewer"):
        change_head(tmp_path, StreamDisk(), FakeClock(), lambda _: many)

    assert StreamReader(tmp_path).look().bases.keys() == {0}


def test_a_header_that_is_too_large_is_refused(folder: Path) -> None:
    path = change_file(folder, StreamReader(folder).look().stream, 1)
    content = (9 << 20).to_bytes(8, "little") + b"{}" + b" " * ((9 << 20) - 2)
    path.write_bytes(content)
    set_head(folder, digest=hashlib.sha256(content).hexdigest())

    with pytest.raises(ChangeDamagedError, match="larger than 8388608 bytes"):
        list(StreamReader(folder).changes(0, 1))


@pytest.mark.parametrize("which", ["stream", "base"])
def test_a_folder_that_is_a_link_is_refused(folder: Path, which: str) -> None:
    stream = StreamReader(folder).look().stream
    path = folder / stream if which == "stream" else base_folder(folder, stream, 0)
    elsewhere = folder / "elsewhere"
    path.rename(elsewhere)
    reader = StreamReader(folder)
    path.symlink_to(elsewhere)

    with pytest.raises(BaseDamagedError, match="is a link"):
        reader.base()
    with pytest.raises(BaseDamagedError, match="is a link"):
        list(reader.changes(0, 1))


def test_a_stream_that_becomes_a_link_is_read_no_further(folder: Path) -> None:
    reader = StreamReader(folder)
    path = folder / reader.base().stream
    reader._schema(reader.look())
    elsewhere = folder / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)

    with pytest.raises(ChangeDamagedError, match="is a link"):
        list(reader.changes(0, 1))


def test_a_change_that_there_is_no_memory_for_is_no_damage(folder: Path) -> None:
    path = change_file(folder, StreamReader(folder).look().stream, 1)
    os.truncate(path, 1 << 42)  # a hole, which takes no place on the disk

    with pytest.raises(FileMemoryError, match="no memory for its 4,398,046,511,104 bytes"):
        list(StreamReader(folder).changes(0, 1))


def test_names_of_tables_lead_to_no_other_folder(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    names = ("a/b", "a_b", "A/b", "x" * 250)
    tables = [StreamTable(name=name, dim=1, initializer=InitializerSpec()) for name in names]

    writer.begin(tables, [(n, IDS, ROWS[:, :1].copy()) for n in names], {}, moment=0)

    base = StreamReader(tmp_path).base()
    assert base.tables.keys() == set(names)
    inside = [each.name for each in base_folder(tmp_path, base.stream, 0).iterdir()]
    assert len({name.casefold() for name in inside}) == len(names) + 2
