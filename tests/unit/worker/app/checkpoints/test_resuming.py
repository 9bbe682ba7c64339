"""A launch continues from the newest whole checkpoint of a folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet_worker.app.checkpoints.listing import CheckpointFolderError
from paramfleet_worker.app.checkpoints.resuming import (
    RESUME_FROM,
    NoWholeCheckpointError,
    resume_environment,
)
from paramfleet_worker.core.checkpoints.command_line import CommandLine

Write = Callable[..., Path]


def test_the_newest_whole_one_is_chosen_and_what_is_skipped_is_named(write: Write) -> None:
    write("old", steps=1)
    whole = write("whole", steps=5)
    short = write("short")
    os.truncate(next(short.glob("ads*")), 10)
    changed = next(write("changed").glob("dense*"))
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    whole.with_name(".new.0123abcd.partial").mkdir()
    lines: list[str] = []

    found = resume_environment(whole.parent, lines.append)

    assert found == {RESUME_FROM: str(whole)}
    told = "\n".join(lines)
    assert f"resume: skipped {short}: ads.server" in told
    assert f"resume: skipped {changed.parent}: {changed.name}: its SHA-256 is another" in told
    assert ".new.0123abcd.partial: it is unfinished" in told
    assert lines[-1] == f"resume: the job continues from {whole}, step 5"


def test_an_older_one_with_more_steps_is_named_with_the_command_that_takes_it(
    write: Write,
) -> None:
    farther = write("a long run", steps=900)
    manifest = json.loads((farther / "manifest.json").read_text())
    manifest["written_at"] = "2001-01-01T00:00:00+00:00"
    (farther / "manifest.json").write_text(json.dumps(manifest))
    lines: list[str] = []
    newest = write("again", steps=5)
    words = ("launch", "--resume=saved", "train.py")
    again = CommandLine.of(words, words[2:], {"PARAMFLEET_PSERVER__COLD_DIR": "/cold"})

    found = resume_environment(newest.parent, lines.append, again)

    assert found == {RESUME_FROM: str(newest)}
    told, warning = lines
    assert told == f"resume: the job continues from {newest}, step 5"
    assert warning == (
        "warning: that is the newest checkpoint, but a long run has more steps (900); to "
        f"continue from that one, with the same PARAMFLEET_PSERVER__COLD_DIR: "
        f"paramfleet launch --resume '{farther}' train.py"
    )
    lines.clear()
    resume_environment(farther, lines.append)
    assert lines == [f"resume: the job continues from {farther}, step 900"]


def test_a_checkpoint_itself_may_be_named_by_a_link(write: Write) -> None:
    folder = write("one")
    (folder.parent / "latest").symlink_to("one")

    found = resume_environment(folder.parent / "latest", lambda line: None)

    assert found == {RESUME_FROM: str(folder)}


def test_an_empty_folder_starts_anew_and_says_so(tmp_path: Path) -> None:
    lines: list[str] = []

    assert resume_environment(tmp_path, lines.append) == {RESUME_FROM: ""}
    assert lines == [
        f"resume: no checkpoint in {tmp_path} yet: the job starts from the beginning"
    ]


def test_a_first_save_that_was_cut_off_starts_anew(write: Write) -> None:
    folder = write("one")
    folder.rename(folder.with_name(".one.0123abcd.partial"))
    lines: list[str] = []

    assert resume_environment(folder.parent, lines.append) == {RESUME_FROM: ""}
    assert "it is unfinished" in lines[0]


def test_a_folder_of_damaged_checkpoints_does_not_start_anew(write: Write) -> None:
    folder = write("one")
    next(folder.glob("ads*")).unlink()

    with pytest.raises(NoWholeCheckpointError, match=r"the newest is one: ads.*No such file"):
        resume_environment(folder.parent, lambda line: None)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFolderError, match="missing: No such file"):
        resume_environment(tmp_path / "missing", lambda line: None)


def test_another_one_than_a_consistent_cut_is_named(write: Write) -> None:
    folder = write("one", consistent=False)
    lines: list[str] = []

    resume_environment(folder, lines.append)

    assert "one is not a consistent cut" in lines[-1]
