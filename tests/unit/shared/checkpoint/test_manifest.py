"""Files of a checkpoint are what was saved, or an error that names the file."""

import hashlib
import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    FilePart,
    Manifest,
    ManifestError,
    SavedFile,
    SavedTable,
    read_manifest,
    read_part,
    sync_directory,
    write_manifest,
    write_part,
)
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="adagrad"))
FLAT = TableSpec(name="flat", kind="dense", size=9)


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def sparse_part(num: int = 3) -> FilePart:
    return FilePart(
        ids=np.arange(num, dtype=np.int64) + 7, values=floats(num, 2), states=floats(num, 2)
    )


def test_a_sparse_part_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = write_part(tmp_path / "new", "a.safetensors", ROWS, sparse_part())

    part = read_part(tmp_path / "new", saved, ROWS)

    assert part.ids is not None
    np.testing.assert_array_equal(part.ids, [7, 8, 9])
    np.testing.assert_array_equal(part.values, floats(3, 2))
    np.testing.assert_array_equal(part.states, floats(3, 2))
    assert (saved.rows, saved.table, saved.kind) == (3, "rows", "sparse")
    content = (tmp_path / "new" / "a.safetensors").read_bytes()
    assert (saved.bytes, saved.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_dense_part_comes_back_with_its_place(tmp_path: Path) -> None:
    part = FilePart(values=floats(4), states=floats(0, 4), start=5)
    saved = write_part(tmp_path, "a.safetensors", FLAT, part)

    again = read_part(tmp_path, saved, FLAT)

    assert (again.start, again.num_rows, again.ids) == (5, 4, None)
    np.testing.assert_array_equal(again.values, floats(4))


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_file_that_is_no_regular_one_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "ck"
    saved = write_part(folder, "a.safetensors", ROWS, sparse_part())
    write_manifest(folder, Manifest(tables=(SavedTable(spec=ROWS, version=1),), files=(saved,)))
    for name in ("a.safetensors", "manifest.json"):
        path = folder / name
        path.rename(tmp_path / name)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(tmp_path / name)
        else:
            path.mkdir()

    with pytest.raises(CheckpointDamagedError, match=r"a\.safetensors"):
        read_part(folder, saved, ROWS)
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("key", "change", "rule"),
    [
        ("tables", {}, "names a table twice"),
        ("files", {}, "names a file twice"),
        ("files", {"name": "b", "rows": -1}, "rows = -1 is no whole number"),
        ("files", {"name": "b", "bytes": -1}, "bytes = -1 is no whole number"),
    ],
)
def test_a_manifest_names_each_table_and_file_once_and_no_negative_numbers(
    tmp_path: Path, key: str, change: dict[str, Any], rule: str
) -> None:
    saved = write_part(tmp_path, "a.safetensors", ROWS, sparse_part())
    tables = (SavedTable(spec=ROWS, version=1),)
    write_manifest(tmp_path, Manifest(tables=tables, files=(saved,)))
    document = json.loads((tmp_path / "manifest.json").read_text())
    document[key].append(document[key][0] | change)
    (tmp_path / "manifest.json").write_text(json.dumps(document))

    with pytest.raises(ManifestError, match=rule):
        read_manifest(tmp_path)


def two_files(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose rows are in two files."""
    files = tuple(
        write_part(folder, name, ROWS, sparse_part()) for name in ("a.safetensors", "b")
    )
    write_manifest(folder, Manifest(tables=(SavedTable(spec=ROWS, version=1),), files=files))
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return document


@pytest.mark.parametrize("kept", [0, 1])
def test_the_files_of_a_manifest_hold_all_rows_of_a_sparse_table(
    tmp_path: Path, kept: int
) -> None:
    document = two_files(tmp_path)
    document["files"] = document["files"][:kept]
    (tmp_path / "manifest.json").write_text(json.dumps(document))

    rule = rf"manifest\.json: the files of table 'rows' lack {6 - 3 * kept} rows"
    with pytest.raises(ManifestError, match=rule):
        read_manifest(tmp_path)


def test_a_manifest_of_before_rows_were_counted_is_read(tmp_path: Path) -> None:
    document = two_files(tmp_path)
    assert document.pop("rows") == {"rows": 6}
    (tmp_path / "manifest.json").write_text(json.dumps(document))

    assert len(read_manifest(tmp_path).files) == 2


@pytest.mark.parametrize("spec", [ROWS, FLAT], ids=["sparse", "dense"])
def test_a_file_longer_than_its_rows_is_refused_before_memory_is_taken(
    tmp_path: Path, spec: TableSpec
) -> None:
    part = FilePart(values=floats(4), states=floats(0, 4))
    saved = write_part(tmp_path, "a", spec, sparse_part() if spec is ROWS else part)
    os.truncate(tmp_path / "a", 1 << 32)  # a hole, which takes no place on the disk
    tracemalloc.start()

    with pytest.raises(CheckpointDamagedError, match=r"4294967296 bytes .* of \d rows"):
        read_part(tmp_path, replace(saved, bytes=1 << 32), spec)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_has_each_id_once(tmp_path: Path) -> None:
    part = replace(sparse_part(), ids=np.array([7, 9, 7], np.int64))
    saved = write_part(tmp_path, "a.safetensors", ROWS, part)

    with pytest.raises(CheckpointDamagedError, match="an id is there twice"):
        read_part(tmp_path, saved, ROWS)


def test_a_folder_may_be_reached_by_a_link(tmp_path: Path) -> None:
    saved = write_part(tmp_path / "ck", "a.safetensors", ROWS, sparse_part())
    (tmp_path / "latest").symlink_to("ck")

    assert read_part(tmp_path / "latest", saved, ROWS).num_rows == 3


def forged(
    folder: Path, spec: TableSpec, rows: int, tensors: Any, **metadata: str
) -> SavedFile:
    """Return a file whose hash is right and whose contents may not be."""
    content = save(tensors, metadata=metadata or None)
    (folder / "forged").write_bytes(content)
    return SavedFile(
        name="forged",
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        rows=rows,
        table=spec.name,
        kind=spec.kind,
    )


def test_contents_that_do_not_fit_the_table_are_refused(tmp_path: Path) -> None:
    good = {"ids": np.zeros(3, np.int64), "values": floats(3, 2), "states": floats(3, 2)}
    flat = {"values": floats(4), "states": floats(0, 4)}
    wrong: list[tuple[TableSpec, int, Any, dict[str, str]]] = [
        (ROWS, 3, good | {"ids": np.zeros(2, np.int64)}, {}),
        (ROWS, 3, good | {"ids": np.zeros(3, np.int32)}, {}),
        (ROWS, 3, good | {"values": floats(3, 3)}, {}),
        (ROWS, 3, good | {"states": floats(3, 4)}, {}),
        (ROWS, 3, good | {"values": floats(3, 2).astype(np.float64)}, {}),
        (ROWS, 3, {"ids": np.zeros(3, np.int64)}, {}),
        (FLAT, 4, flat, {}),
        (FLAT, 4, flat, {"start": "6", "stop": "10"}),
        (FLAT, 4, flat, {"start": "0", "stop": "3"}),
        (FLAT, 4, flat, {"start": "x", "stop": "4"}),
    ]

    for spec, rows, tensors, metadata in wrong:
        with pytest.raises(CheckpointDamagedError):
            read_part(tmp_path, forged(tmp_path, spec, rows, tensors, **metadata), spec)


def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    content = b"\xff" * 100
    (tmp_path / "x").write_bytes(content)
    file = SavedFile(
        name="x",
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=100,
        rows=3,
        table="rows",
        kind="sparse",
    )

    with pytest.raises(CheckpointDamagedError):
        read_part(tmp_path, file, ROWS)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    file = write_part(tmp_path, "a.safetensors", ROWS, sparse_part())
    manifest = Manifest(tables=(SavedTable(spec=ROWS, version=4),), files=(file,))

    write_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path) == manifest


def changed(document: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**document, **changes})


def test_an_export_is_told_apart_from_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": "paramfleet-export", "version": 1}))

    with pytest.raises(
        ManifestError, match=r"is that of an export, which fleet\.serving\.load"
    ):
        read_manifest(tmp_path)


def test_a_manifest_that_breaks_a_rule_is_refused_by_its_path(tmp_path: Path) -> None:
    file = write_part(tmp_path, "a.safetensors", ROWS, sparse_part())
    write_manifest(
        tmp_path, Manifest(tables=(SavedTable(spec=ROWS, version=4),), files=(file,))
    )
    path = tmp_path / "manifest.json"
    good = json.loads(path.read_text())
    wire, plain = good["tables"][0], file.to_wire()
    wrong = [
        "{",
        "[]",
        changed(good, format="other"),
        changed(good, version=2),
        changed(good, tables=None),
        changed(good, tables=[{**wire, "dim": -1}]),
        changed(good, tables=[{k: v for k, v in wire.items() if k != "version"}]),
        changed(good, files=[{**plain, "name": "../a"}]),
        changed(good, files=[{**plain, "name": ".."}]),
        changed(good, files=[{**plain, "bytes": "many"}]),
        changed(good, files=[{**plain, "bytes": float("inf")}]),
        changed(good, files=[{**plain, "rows": -1}]),
        changed(good, files=[{**plain, "rows": 1e400}]),
        changed(good, rows={"rows": -1}),
        changed(good, rows={"rows": "3"}),
        changed(good, rows=[3]),
        changed(good, rows={}),
        changed(good, tables=[{**wire, "version": -5}]),
        changed(good, tables=[{**wire, "version": 2**54}]),
        changed(good, tables=[{**wire, "version": 4.0}]),
        changed(good, tables=[{**wire, "dim": 2.0}]),
        changed(good, gathered={"workers": [float("inf")], "left_out": []}),
        changed(good, cut={"consistent": True, "reason": "", "paused_s": 10**400}),
        changed(good, written_at="0001-01-01T00:00:00+14:00"),  # in UTC there is no such year
        changed(good, written_at="9999-12-31T23:59:59-14:00"),
        "[" * 100_000,
        '{"format": ' + "[" * 900 + "]" * 900 + "}",
        changed(good, files=[{**plain, "table": "other"}]),
        changed(good, files=[{**plain, "kind": "dense"}]),
    ]

    for text in wrong:
        path.write_text(text)
        with pytest.raises(ManifestError) as caught:
            read_manifest(tmp_path)
        assert caught.value.path == str(path)


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is missing: its folder is no checkpoint"):
        read_manifest(tmp_path)
    with pytest.raises(ManifestError, match="or isn't there"):
        read_manifest(tmp_path / "none")


def test_a_missing_file_and_an_altered_one_are_damage(tmp_path: Path) -> None:
    file = write_part(tmp_path, "a.safetensors", ROWS, sparse_part())

    with pytest.raises(CheckpointDamagedError):
        read_part(tmp_path, replace(file, name="b.safetensors"), ROWS)
    with pytest.raises(CheckpointDamagedError):
        read_part(tmp_path, replace(file, bytes=1), ROWS)
    with pytest.raises(CheckpointDamagedError, match="SHA-256") as caught:
        read_part(tmp_path, replace(file, sha256="0" * 64), ROWS)
    assert caught.value.path.endswith("a.safetensors")


def test_a_folder_that_is_a_file_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointWriteError):
        write_part(tmp_path / "file", "a", ROWS, sparse_part())
    with pytest.raises(CheckpointWriteError) as caught:
        sync_directory(tmp_path / "file")
    assert caught.value.path == str(tmp_path / "file")


def test_a_manifest_says_of_what_moment_it_is(tmp_path: Path) -> None:
    cut = Cut(consistent=False, reason="pserver 1 lacks a push", paused_s=1.5)
    write_manifest(tmp_path / "one", Manifest(tables=(), files=(), cut=cut))
    write_manifest(tmp_path / "two", Manifest(tables=(), files=()))

    assert read_manifest(tmp_path / "one").cut == cut
    assert read_manifest(tmp_path / "two").cut is None


def test_a_link_of_a_file_s_name_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "manifest.json").symlink_to(victim)

    with pytest.raises(CheckpointWriteError, match=r"manifest\.json"):
        write_manifest(tmp_path, Manifest(tables=(), files=()))

    assert victim.read_text() == "precious"
