"""Which folders checkpoints may be in."""

import os
from pathlib import Path

import pytest

from paramfleet_shared.files.folders import (
    CheckpointDirs,
    FolderNameError,
    FolderNotAllowedError,
    check_folder_name,
)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("/", "root of the file system"),
        ("//./", "root of the file system"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("a\x7f", "control characters"),
        ("x" * 256, "at most 255 bytes"),
        ("ü" * 128, "at most 255 bytes"),
        ("x/" * 3000, "at most 4095 bytes"),
        ("\ud800", "characters that no file system has"),
    ],
)
def test_a_name_that_no_folder_can_have_is_refused_with_its_rule(name: str, rule: str) -> None:
    with pytest.raises(FolderNameError, match=rule) as caught:
        check_folder_name(name)

    assert len(caught.value.path) <= 200


def test_an_ordinary_name_passes() -> None:
    check_folder_name("/data/emb ü/day-3")


def test_what_is_below_an_allowed_folder_passes_and_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "kept", target_is_directory=True)
    dirs = CheckpointDirs.of(os.pathsep.join([str(tmp_path / "kept"), str(tmp_path / "more")]))

    assert dirs.require(str(tmp_path / "kept")) == tmp_path / "kept"
    assert dirs.require(str(tmp_path / "more" / "x")) == tmp_path / "more" / "x"
    assert dirs.require(str(tmp_path / "link" / "x")) == tmp_path / "kept" / "x"
    assert dirs.require(str(tmp_path / "kept" / "a" / ".." / "b")) == tmp_path / "kept" / "b"


def test_what_is_elsewhere_is_refused_and_the_setting_named(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "out").symlink_to("/etc", target_is_directory=True)
    dirs = CheckpointDirs.of(str(kept))

    for path in (
        "/etc",
        str(kept / ".." / "other"),
        str(kept) + "-not",
        str(kept / "out" / "x"),
        str(tmp_path),
    ):
        with pytest.raises(FolderNotAllowedError, match="PARAMFLEET_CHECKPOINT_DIRS") as caught:
            dirs.require(path)
        assert str(kept) in str(caught.value)


def test_links_in_a_circle_are_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(FolderNameError, match="can't be resolved"):
        CheckpointDirs.of(str(tmp_path)).require(str(tmp_path / "a" / "x"))


def test_without_a_setting_the_working_folder_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dirs = CheckpointDirs.of("")

    assert dirs.require("x") == tmp_path / "x"
    with pytest.raises(FolderNotAllowedError):
        dirs.require("..")
