"""A file is replaced as a whole, and nothing else is written to."""

import os
import secrets
import stat
from pathlib import Path

import pytest

from paramfleet_shared.files.regular_files import replaced


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
