"""A file is replaced as a whole, and nothing else is written to."""

import os
import secrets
import stat
from pathlib import Path

import pytest

from paramfleet_shared.files.regular_files import open_own, replaced


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.symlink_to("elsewhere")
    former = os.umask(0o027)
    try:
        with replaced(path) as file:
            file.write(b"new")
            assert path.is_symlink()
            (draft,) = set(names(tmp_path)) - {"rows"}
    finally:
        os.umask(former)

    assert draft.startswith(".rows.")
    assert (names(tmp_path), path.read_bytes()) == (["rows"], b"new")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o640


def test_one_that_is_not_whole_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"former")

    def write_half() -> None:
        with replaced(path) as file:
            file.write(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert (names(tmp_path), path.read_bytes()) == (["rows"], b"former")


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_what_has_the_other_name_already_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0123abcd")
    victim, planted = tmp_path / "victim", tmp_path / ".rows.0123abcd.partial"
    victim.write_text("precious")
    if kind == "link":
        planted.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.hardlink_to(victim)

    with pytest.raises(FileExistsError), replaced(tmp_path / "rows"):
        pass

    assert names(tmp_path) == sorted([planted.name, "victim"])
    assert victim.read_text() == "precious"


def made_null(path: Path) -> Path:
    """Make a device that swallows all, as ``/dev/null`` is."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    return path


@pytest.mark.parametrize("replace", [True, False])
def test_a_device_is_written_to_and_stays(tmp_path: Path, *, replace: bool) -> None:
    null = made_null(tmp_path / "null")

    descriptor = open_own(null, replace=replace)
    os.write(descriptor, b"said")
    os.close(descriptor)

    assert stat.S_ISCHR(null.stat().st_mode)


def test_what_nobody_could_have_put_there_is_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    with pytest.raises(OSError, match="folder"):
        open_own(folder)

    assert folder.is_dir()
