"""A folder's checkpoints are listed from their manifests and the lengths of their files."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from paramfleet_worker.app.checkpoints.listing import CheckpointFolderError, list_checkpoints

Write = Callable[..., Path]


def dated(folder: Path, day: int) -> None:
    """Let a manifest say that it was written on some day."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    document["written_at"] = f"2026-05-{day:02d}T12:00:00+02:00"
    path.write_text(json.dumps(document))


def test_the_checkpoints_of_a_folder_come_newest_first(write: Write) -> None:
    for name, day in (("a", 2), ("b", 3), ("c", 1)):
        dated(write(name, steps=day), day)

    found = list_checkpoints(write("d").parent)

    assert [each.name for each in found] == ["d", "b", "a", "c"]
    second = found[1]
    assert second.written_at == datetime(2026, 5, 3, 10, tzinfo=UTC)
    facts = second.step, second.workers, second.servers, second.tables, second.rows
    assert facts == (3, 2, 2, 1, 40)
    assert second.dense == 1, "parameters are no tables"
    files = [path for path in Path(second.path).iterdir() if path.suffix == ".safetensors"]
    assert second.bytes == sum(path.stat().st_size for path in files)
    assert second.whole
    assert second.consistent


def test_a_checkpoint_itself_is_a_list_of_one(write: Write) -> None:
    folder = write("one", consistent=False)

    (found,) = list_checkpoints(folder)

    assert (found.name, found.path, found.consistent) == ("one", str(folder), False)


def test_links_exports_and_other_folders_are_left_out(write: Write) -> None:
    folder = write("one")
    parent = folder.parent
    (parent / "latest").symlink_to("one")
    (parent / "data").mkdir()
    (parent / "notes.txt").write_text("none")
    (parent / "0.inference").mkdir()
    (parent / "0.inference" / "manifest.json").write_text('{"format": "paramfleet-export"}')

    assert [each.name for each in list_checkpoints(parent)] == ["one"]


def test_checkpoints_of_a_training_by_days_are_listed_with_their_day(write: Write) -> None:
    one = write("one")
    root = one.parent
    for day, number in (("20260101", "0"), ("20260101", "12"), ("20260101", "6"),
                        ("20260102", "0")):  # fmt: skip
        (root / day).mkdir(exist_ok=True)
        shutil.copytree(one, root / day / number)
        dated(root / day / number, int(day[-1]))
    dated(root / "20260101/6", 9)  # the clock was put back behind it
    dated(one, 8)
    (root / "20260102/base").mkdir()
    (root / "20260102/base/manifest.json").write_text('{"format": "paramfleet-export"}')
    (root / "20260102/.6.0123abcd.partial").mkdir()
    (root / "20260102/.base.0123abcd.partial").mkdir()
    (root / "20260102/7").mkdir()
    (root / "20260103").mkdir()
    (root / "20260104").symlink_to("20260101")

    found = {each.name: each for each in list_checkpoints(root)}

    assert list(found) == [
        "20260102/.6.0123abcd.partial", "20260102/0", "20260101/12", "20260101/6",
        "one", "20260101/0",
    ]  # fmt: skip
    assert found["20260101/12"].path == str(root / "20260101/12")
    assert {each.name for each in list_checkpoints(root / "20260101")} == {"0", "6", "12"}


def test_a_checkpoint_may_have_the_name_of_a_day(write: Write) -> None:
    folder = write("20260101")
    (folder / "6").mkdir()

    assert [each.name for each in list_checkpoints(folder.parent)] == ["20260101"]


def test_a_manifest_without_a_time_has_that_of_its_file(write: Write) -> None:
    folder = write("one")
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    del document["written_at"]
    path.write_text(json.dumps(document))
    os.utime(path, (1000, 1000))

    (found,) = list_checkpoints(folder)

    assert found.written_at == datetime.fromtimestamp(1000, UTC)
    assert found.whole


@pytest.mark.parametrize(
    ("seconds", "year"), [(10**14, 9999), (-(10**14), 1), (253_402_300_800, 9999)]
)
def test_what_was_changed_in_no_year_has_the_next_time_that_there_is(
    write: Write, seconds: int, year: int
) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        one = Path(shutil.copytree(write("one"), Path(folder, "one")))
        path = one / "manifest.json"
        path.write_text("{")
        os.utime(path, (seconds, seconds))
        if path.stat().st_mtime != seconds:
            pytest.skip("no file system here keeps such a time")

        (found,) = list_checkpoints(Path(folder))

    assert found.written_at.year == year
    assert found.written_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json can't"),
        (lambda folder: (folder / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda folder: next(folder.glob("ads*")).unlink(), "No such file"),
        (lambda folder: os.truncate(next(folder.glob("ads*")), 9), "has 9 bytes instead of"),
        (lambda folder: (folder / "module.safetensors").write_bytes(b""), "has 0 bytes"),
    ],
)
def test_what_is_not_whole_says_why(
    write: Write, spoil: Callable[[Path], object], problem: str
) -> None:
    folder = write("one")
    spoil(folder)

    (found,) = list_checkpoints(folder.parent)

    assert not found.whole
    assert not found.unfinished
    assert problem in found.problem


def test_what_a_save_left_behind_is_unfinished(write: Write) -> None:
    folder = write("one")
    folder.rename(folder.with_name(".one.0123abcd.partial"))

    (found,) = list_checkpoints(folder.parent)

    assert found.unfinished
    assert not found.whole


def test_a_time_that_is_none_makes_a_manifest_malformed(write: Write) -> None:
    folder = write("one")
    path = folder / "manifest.json"
    for wrong in (7, "yesterday", "2026-05-01T12:00:00"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"written_at": wrong}))

        (found,) = list_checkpoints(folder)

        assert "malformed" in found.problem


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    with pytest.raises(CheckpointFolderError, match=r"missing: No such file.*make it"):
        list_checkpoints(missing)


def test_a_file_is_no_folder_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointFolderError, match="Not a directory"):
        list_checkpoints(tmp_path / "file")
