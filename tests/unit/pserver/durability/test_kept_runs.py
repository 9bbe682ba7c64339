"""Looking through a data folder follows no link and writes nothing, whatever is in it."""

import os
from pathlib import Path

import pytest

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.durability.kept_runs import KeptRun, kept_runs, remove_run
from paramfleet_shared.errors.logs import DataFolderError, LogInUseError


def begin(root: Path, job: str) -> DataFolder:
    folder = DataFolder(root, job, 0)
    folder.begin(7)
    (folder.run(7) / "log").write_bytes(b"x" * 5000)
    return folder


def runs(root: Path) -> tuple[list[KeptRun], list[str]]:
    left: list[str] = []
    return list(kept_runs(root, lambda path, _: left.append(path.name))), left


def test_runs_are_found_and_removed_but_those_in_use(tmp_path: Path) -> None:
    begin(tmp_path, "ended").close()
    held = begin(tmp_path, "living")
    found, left = runs(tmp_path)
    assert [(each.job, each.index, each.run_id, each.in_use) for each in found] == [
        ("ended", 0, 7, False), ("living", 0, 7, True),
    ]  # fmt: skip
    assert found[0].num_bytes >= 5000
    assert not left

    with pytest.raises(LogInUseError):
        remove_run(tmp_path, found[1])
    remove_run(tmp_path, found[0])
    held.close()
    assert [each.job for each in runs(tmp_path)[0]] == ["living"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim, root = tmp_path / "victim", tmp_path / "data"
    begin(victim, "job").close()
    begin(root, "own").close()
    (root / "old").symlink_to(victim / "job")
    (root / "own" / "pserver-3").symlink_to(victim / "job" / "pserver-0")
    (root / "own" / "pserver-0" / "run-8").symlink_to(victim / "job" / "pserver-0" / "run-7")

    found, left = runs(root)

    assert [(each.job, each.index, each.run_id) for each in found] == [("own", 0, 7)]
    assert left == ["old", "pserver-3"]
    (root / "own").rename(root / "moved")
    (root / "own").symlink_to(victim / "job")  # after the list was made
    with pytest.raises(DataFolderError, match="link"):
        remove_run(root, found[0])
    assert (victim / "job" / "pserver-0" / "run-7" / "log").exists()


def test_to_look_writes_nothing(tmp_path: Path) -> None:
    begin(tmp_path, "job").close()
    lock, precious = tmp_path / "job" / "pserver-0" / "lock", tmp_path / "precious"
    precious.write_text("precious")
    lock.unlink()
    os.link(precious, lock)

    found, left = runs(tmp_path)
    remove_run(tmp_path, found[0])

    assert precious.read_text() == "precious"
    assert not left


def test_one_bad_folder_hides_no_other(tmp_path: Path) -> None:
    for job in ("a", "b", "c"):
        begin(tmp_path, job).close()
    (tmp_path / "file").write_text("x")
    lock = tmp_path / "a" / "pserver-0" / "lock"
    lock.unlink()
    os.mkfifo(lock)
    lock = tmp_path / "b" / "pserver-0" / "lock"
    lock.unlink()
    lock.symlink_to("/nonexistent")

    found, left = runs(tmp_path)

    assert [each.job for each in found] == ["c"]
    assert left == ["pserver-0", "pserver-0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_user_s_folders_are_left_out(tmp_path: Path) -> None:
    begin(tmp_path, "job").close()
    os.chown(tmp_path / "job", 12345, -1)

    assert runs(tmp_path) == ([], ["job"])
