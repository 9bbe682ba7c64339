"""Lists as Fleet's readers know them, and what isn't a line of one is named."""

import json
from pathlib import Path

import pytest

from paramfleet.runner.online.calendar import Place
from paramfleet.runner.online.donefiles import (
    BASES,
    CHECKPOINTS,
    DELTAS,
    DonefileError,
    base_line,
    checkpoint_line,
    delta_line,
    new_id,
    new_key,
    read_written,
    with_line,
)
from paramfleet.runner.online.model_folder import ModelFolder
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError, ManifestError


def test_lines_are_fleets() -> None:
    assert checkpoint_line(Place("20260101", 6), key=7, path="/m/20260101/6") == (
        "20260101\t7\t/m/20260101/6\t6\t0"
    )
    assert checkpoint_line(Place("20260102", 0), key=7, path="/m/20260102/0") == (
        "20260102\t7\t/m/20260102/0\t-1\t0"
    )
    base = json.loads(base_line(key=7, path="/m/20260102/base", monitor="auc 0.7"))
    assert base == {
        "id": "7",
        "key": "7",
        "input": "/m/20260102/base/000",
        "monitor_data": "auc 0.7",
    }
    delta = json.loads(delta_line(identity=9, key=7, path="/m/20260102/delta-6", monitor=""))
    assert (delta["id"], delta["key"]) == ("9", "7")
    assert delta["input"] == "/m/20260102/delta-6/000"


def test_what_was_written_is_read() -> None:
    checkpoints = with_line("", checkpoint_line(Place("20260101", 6), key=0, path="/a"))
    checkpoints = with_line(
        f"\n{checkpoints}\n", checkpoint_line(Place("20260102", 0), key=7, path="/m")
    )
    bases = with_line("", base_line(key=7, path="/m/20260102/base", monitor=""))
    bases = with_line(bases, base_line(key=8, path="/m/20260102/base-3", monitor=""))
    deltas = with_line(
        "", delta_line(identity=9, key=7, path="/m/20260102/delta-2", monitor="")
    )

    written = read_written(checkpoints, bases, deltas)

    assert written.listed == {Place("20260101", 6), Place("20260102", 0)}
    assert written.bases == {Place("20260102", 0): 7, Place("20260102", 3): 8}
    assert written.deltas == {(Place("20260102", 2), 7)}
    assert checkpoints.count("\n") == 2
    assert (new_key(written, now=5), new_key(written, now=50)) == (9, 50)
    assert (new_id(deltas, now=5), new_id(deltas, now=50), new_id("", now=5)) == (10, 50, 5)


@pytest.mark.parametrize("letter", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_ends_a_line(letter: str) -> None:
    path = f"/m{letter}n/20260101/6"
    checkpoints = with_line("", checkpoint_line(Place("20260101", 6), key=0, path=path))
    checkpoints = with_line(
        checkpoints, checkpoint_line(Place("20260101", 7), key=0, path=path)
    )

    written = read_written(checkpoints, "", "")

    assert written.listed == {Place("20260101", 6), Place("20260101", 7)}
    assert checkpoints.count(path) == 2


GOOD = base_line(key=7, path="/m/20260102/base", monitor="")


@pytest.mark.parametrize(
    ("lists", "file"),
    [
        (("x", "", ""), CHECKPOINTS),
        (("20260101\t7\t/m\t-2\t0", "", ""), CHECKPOINTS),
        (("2026010\t7\t/m\t1\t0", "", ""), CHECKPOINTS),
        (("20260101\tx\t/m\t1\t0", "", ""), CHECKPOINTS),
        (("", "x", ""), BASES),
        (("", "[]", ""), BASES),
        (("", '{"id": "1", "key": "x", "input": "20260101/base/000"}', ""), BASES),
        (("", '{"key": "1", "input": "20260101/base/000"}', ""), BASES),
        (("", '{"id": "1", "key": "1", "input": "/m/base/000"}', ""), BASES),
        (("", '{"id": "1", "key": "1", "input": 1}', ""), BASES),
        (("", "[" * 100_000, ""), BASES),
        (("", GOOD.replace("base", "delta-1"), ""), BASES),
        (("", "", GOOD), DELTAS),
    ],
)
def test_what_is_no_line_is_named(lists: tuple[str, str, str], file: str) -> None:
    with pytest.raises(DonefileError) as caught:
        read_written(*(f"\n{text}\n" if text else "" for text in lists))

    assert (caught.value.file, caught.value.line) == (file, 2)


def test_a_list_grows_as_a_whole(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path / "saved")
    line = checkpoint_line(Place("20260101", 6), key=0, path="/m")
    assert not folder.written().listed

    folder.add(CHECKPOINTS, line)
    folder.add(CHECKPOINTS, checkpoint_line(Place("20260101", 7), key=0, path="/m"))

    assert folder.written().listed == {Place("20260101", 6), Place("20260101", 7)}
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [CHECKPOINTS]


def test_a_list_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    (tmp_path / BASES).write_bytes(b"\xff\xfe")
    (tmp_path / DELTAS).mkdir()
    with pytest.raises(ManifestError, match=BASES):
        folder.read(BASES)
    with pytest.raises(ManifestError, match=DELTAS):
        folder.read(DELTAS)
    (tmp_path / "file").write_text("")

    with pytest.raises((CheckpointWriteError, ManifestError), match=CHECKPOINTS):
        ModelFolder(tmp_path / "file").add(CHECKPOINTS, "x")


def test_the_newest_checkpoint_is_the_last_complete_one(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    assert folder.newest() is None
    assert ModelFolder(tmp_path / "none").newest() is None
    for name in ("20260101/6", "20260101/12", "20260102/0", "20260102/base", "20260102/07"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    for name in ("20260102/6", "20260102/.6.partial", "others/7", "20260103"):
        (tmp_path / name).mkdir(parents=True)

    assert folder.newest() == tmp_path / "20260102/0"
    (tmp_path / "20260102/0/manifest.json").unlink()
    assert folder.newest() == tmp_path / "20260101/12"
    assert folder.checkpoint(Place("20260101", 12)) == tmp_path / "20260101/12"
    assert folder.base(Place("20260102", 0)) == tmp_path / "20260102/base"
    assert folder.base(Place("20260102", 3)) == tmp_path / "20260102/base-3"
    assert folder.delta(Place("20260102", 3)) == tmp_path / "20260102/delta-3"
