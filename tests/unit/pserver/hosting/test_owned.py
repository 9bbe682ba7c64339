"""Which groups a disk has, whatever others do to the folders meanwhile."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.durability.lives import new_life, newest_life, remove_others
from paramfleet_pserver.hosting.folders import held, note_owned, run_folder
from paramfleet_shared.testing.patience import LATE_S

RUN = 7


@pytest.fixture
def settings(tmp_path: Path) -> PServerSettings:
    return PServerSettings(job="j", data_dir=str(tmp_path), durability="async")


def with_snapshot(folder: Path) -> Path:
    """Have a folder be whole, as far as that is looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "snapshot-0000000000000010.state").write_bytes(b"x")
    return folder


def test_what_is_held_is_what_was_noted(settings: PServerSettings) -> None:
    folder = with_snapshot(run_folder(settings, 1, RUN))
    assert held(settings, RUN) == {1: 0}
    note_owned(settings, 1, RUN, 12)
    assert held(settings, RUN) == {1: 12}
    with_snapshot(new_life(folder, 13, 10))
    assert held(settings, RUN) == {1: 13}


@pytest.mark.parametrize(
    "content", ["", "garbage", "9" * 5000, "-3", "1 2", "\N{SUPERSCRIPT TWO}"]
)
def test_a_note_that_is_none_isnt_held(settings: PServerSettings, content: str) -> None:
    folder = with_snapshot(run_folder(settings, 0, RUN))
    (folder / "owned").write_text(content, encoding="utf-8")
    with_snapshot(run_folder(settings, 1, RUN))
    note_owned(settings, 1, RUN, 3)

    told: list[str] = []
    assert held(settings, RUN, lambda path, reason: told.append(f"{path}: {reason}")) == {1: 3}

    assert len(told) == 1
    assert str(folder) in told[0]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_note_that_is_no_file_isnt_read(
    settings: PServerSettings, tmp_path: Path, kind: str
) -> None:
    owned = with_snapshot(run_folder(settings, 0, RUN)) / "owned"
    if kind == "pipe":
        os.mkfifo(owned)
    elif kind == "link":
        (tmp_path / "elsewhere").write_text("9")
        owned.symlink_to(tmp_path / "elsewhere")
    else:
        owned.mkdir()

    found: list[dict[int, int]] = []
    looking = threading.Thread(target=lambda: found.append(held(settings, RUN)), daemon=True)
    looking.start()
    looking.join(LATE_S)

    assert found == [{}]


def test_what_another_owner_removes_meanwhile_is_no_error(
    settings: PServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(settings, 0, RUN)
    with_snapshot(new_life(folder, 1, 10))

    def then_removed(path: Path) -> Any:
        life = newest_life(path)
        if life.term == 1:
            remove_others(folder, with_snapshot(new_life(folder, 2, 20)))
        return life

    monkeypatch.setattr("paramfleet_pserver.hosting.folders.newest_life", then_removed)
    assert held(settings, RUN) == {0: 2}


def test_a_group_that_goes_as_it_is_looked_at_isnt_held(
    settings: PServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_snapshot(run_folder(settings, 0, RUN))

    def gone(_: Path) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr("paramfleet_pserver.hosting.folders.newest_life", gone)
    assert held(settings, RUN) == {}


def test_a_disk_that_refuses_to_be_looked_at_is_told(
    settings: PServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_snapshot(run_folder(settings, 0, RUN))

    def refuse(_: Path) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("paramfleet_pserver.hosting.folders.newest_life", refuse)
    told: list[str] = []
    assert held(settings, RUN, lambda _, reason: told.append(reason)) == {}
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert held(settings, RUN, lambda _, reason: told.append(reason)) == {}

    assert len(told) == 2
    assert all("Input/output error" in each for each in told)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_note_isnt_written_through_what_lies_in_its_place(
    settings: PServerSettings, tmp_path: Path, kind: str
) -> None:
    draft = with_snapshot(run_folder(settings, 0, RUN)) / "owned.draft"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(draft)
    else:
        draft.symlink_to(victim)

    noting = threading.Thread(target=note_owned, args=(settings, 0, RUN, 4), daemon=True)
    noting.start()
    noting.join(LATE_S)

    assert held(settings, RUN) == {0: 4}
    assert victim.read_text() == "precious"
