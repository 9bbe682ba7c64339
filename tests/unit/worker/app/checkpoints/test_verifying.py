"""Everything of a checkpoint is read, and each problem names its file and what to do."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paramfleet_shared.tables.rows.routing import route
from paramfleet_worker.app.checkpoints import mapped, verifying
from paramfleet_worker.app.checkpoints.verifying import problem_of, verify

Write = Callable[..., Path]
Change = Callable[[dict[str, Any]], object]
FIRST, SECOND = "ads.server0.00000.safetensors", "ads.server1.00000.safetensors"
DENSE = "dense_0.server0.safetensors"


def edited(folder: Path, change: Change) -> None:
    """Change a manifest."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def sealed(folder: Path, name: str, content: bytes, *, rows: int | None = None) -> None:
    """Write a file, and let the manifest name it as it is now."""
    (folder / name).write_bytes(content)

    def change(document: dict[str, Any]) -> None:
        facts = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
        more = {} if rows is None else {"rows": rows}
        for file in document["files"]:
            if file["name"] == name:
                file |= {**facts, **more}
        if document["module"]["file"] == name:
            document["module"] |= facts
        document.pop("rows", None)

    edited(folder, change)


def altered(folder: Path, name: str, change: Change) -> None:
    """Change the arrays of a file, and let the manifest name it as it is now."""
    arrays = load_file(folder / name)
    change(arrays)
    metadata = {"table": "ads", "kind": "sparse", "start": "0", "stop": "5"}
    save_file(arrays, folder / name, metadata)
    rows = len(arrays["values"])
    sealed(folder, name, (folder / name).read_bytes(), rows=rows)


def test_a_whole_checkpoint_has_no_problem(write: Write) -> None:
    folder = write("one")

    found = verify(folder)

    assert found.problems == ()
    assert found.notes == ()
    assert (found.files, found.rows) == (5, 40)
    assert found.to_json()["whole"] is True
    assert problem_of(folder) == ""


def test_a_checkpoint_without_rows_is_whole(write: Write) -> None:
    assert verify(write("one", ids=[], servers=1)).problems == ()


def test_problems_of_several_files_are_all_named(write: Write) -> None:
    folder = write("one")
    os.truncate(folder / FIRST, 30)
    (folder / SECOND).unlink()
    content = bytearray((folder / DENSE).read_bytes())
    content[-1] ^= 1
    (folder / DENSE).write_bytes(content)
    (folder / "module.safetensors").write_bytes(b"")

    found = {each.file: each for each in verify(folder).problems}

    assert found[FIRST].problem == "its length is another"
    assert "No such file" in found[SECOND].problem
    assert found[DENSE].problem == "its SHA-256 is another"
    assert found["module.safetensors"].problem == "its length is another"
    assert len(found) == 4
    assert all("restore the file from a backup" in each.remedy for each in found.values())
    assert problem_of(folder) == f"{FIRST}: its length is another"


def put(array: str, place: Any, number: float) -> Change:
    def change(arrays: dict[str, Any]) -> None:
        arrays[array][place] = number

    return change


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (FIRST, put("values", (3, 1), np.nan), "values hold infinities or NaN, in rows 2 to 3"),
        (
            SECOND,
            put("states", (0, 0), np.inf),
            "states hold infinities or NaN, in rows 0 to 1",
        ),
        (DENSE, put("states", (0, 4), -1.0), "sums of squares of adagrad are negative"),
        (DENSE, put("values", 2, -np.inf), "values hold infinities or NaN"),
        (FIRST, lambda arrays: arrays.update(ids=arrays["ids"][:-1]), "ids of another shape"),
        (
            FIRST,
            lambda arrays: arrays.update(states=arrays["states"][:, :1]),
            "values or states of another shape",
        ),
        (FIRST, lambda arrays: arrays.pop("states"), "KeyError('states')"),
        (
            FIRST,
            lambda arrays: arrays.update(values=arrays["values"].astype(np.float64)),
            "of another dtype",
        ),
    ],
)
def test_numbers_that_no_training_makes_are_named_with_their_rows(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, change: Change, problem: str
) -> None:
    folder = write("one")
    monkeypatch.setattr(mapped, "PIECE_BYTES", 2 * (8 + 4 * 4))  # two rows at a time
    altered(folder, name, change)

    found = [each for each in verify(folder).problems if each.file == name]

    assert [problem in each.problem for each in found] == [True]


@pytest.mark.parametrize("ids_at_a_time", [1 << 20, 8 * 7])
def test_ids_that_are_there_twice_are_named_with_both_files(
    write: Write, monkeypatch: pytest.MonkeyPatch, ids_at_a_time: int
) -> None:
    folder = write("one")
    monkeypatch.setattr(verifying, "_IDS_BYTES", ids_at_a_time)
    first = int(load_file(folder / FIRST)["ids"][0])
    altered(folder, FIRST, lambda arrays: arrays["ids"].__setitem__(1, first))
    altered(folder, SECOND, lambda arrays: arrays["ids"].__setitem__(1, first))

    problems = {each.problem: each for each in verify(folder).problems}

    assert f"id {first} of table 'ads' is there twice" in problems
    assert problems[f"id {first} of table 'ads' is in {FIRST}, too"].file == SECOND


def test_an_id_in_the_file_of_another_server_than_its_shard_is_named(write: Write) -> None:
    folder = write("one")
    stranger = next(each for each in range(100, 200) if shard_of(each) == 0)
    altered(folder, SECOND, lambda arrays: arrays["ids"].__setitem__(0, stranger))

    (found,) = verify(folder).problems

    assert found.file == SECOND
    assert f"id {stranger} of table 'ads' belongs to shard 0" in found.problem
    assert "server 0 has rows, too" in found.problem


def shard_of(number: int) -> int:
    offsets = route(np.array([number], np.int64), 8).offsets
    return int(np.flatnonzero(np.diff(offsets))[0])


def test_values_of_a_dense_table_that_no_file_has_are_named(write: Write) -> None:
    folder = write("one")
    edited(folder, lambda document: document["files"].pop(2))

    (found,) = verify(folder).problems

    assert found.file == "manifest.json"
    assert found.problem == "table 'dense_0': no file has the values from 0 to 5"


def test_a_buffer_that_its_file_lacks_is_named(write: Write) -> None:
    folder = write("one")
    save_file({"buffers/other": np.ones(2, np.float32)}, folder / "module.safetensors")
    sealed(folder, "module.safetensors", (folder / "module.safetensors").read_bytes())

    (found,) = verify(folder).problems

    assert found.problem == "buffer 'norm.mean' is missing"


@pytest.mark.parametrize(
    "content",
    [
        (1 << 63).to_bytes(8, "little"),
        b"\xff" * 8 + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        b"",
        b"1234",
    ],
)
def test_hostile_files_are_problems_and_no_allocations(write: Write, content: bytes) -> None:
    folder = write("one")
    sealed(folder, FIRST, content)

    assert FIRST in {each.file for each in verify(folder).problems}


def test_lengths_of_a_hostile_manifest_are_not_believed(write: Write) -> None:
    folder = write("one")
    for key in ("bytes", "rows"):
        edited(folder, lambda document, key=key: document["files"][0].update({key: 2**52}))  # type: ignore[misc]

        found = verify(folder).problems

        assert found[0].file == FIRST


def test_a_pipe_and_a_link_in_place_of_a_file_are_problems(write: Write) -> None:
    folder = write("one")
    (folder / FIRST).rename(folder.parent / "elsewhere")
    (folder / FIRST).symlink_to(folder.parent / "elsewhere")
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)

    found = {each.file: each.problem for each in verify(folder).problems}

    assert "is a link" in found[FIRST]
    assert "regular file" in found[SECOND]


def test_what_is_no_checkpoint_is_a_problem_of_its_manifest(tmp_path: Path) -> None:
    (found,) = verify(tmp_path).problems

    assert found.file == "manifest.json"
    assert found.problem == f"is missing from {tmp_path}"
    assert "name a checkpoint's folder, or one that has some in it" in found.remedy


def test_what_is_worth_knowing_is_a_note(write: Write) -> None:
    folder = write("one", consistent=False)
    (folder / "notes.txt").write_text("none")

    found = verify(folder)

    assert found.problems == ()
    assert found.notes == (
        "it is not a consistent cut: worker 1 is missing",
        "the manifest doesn't name notes.txt",
    )
