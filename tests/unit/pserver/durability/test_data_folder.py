"""A data folder that can't be used is named, with the user who tried."""

import os
import pwd
from pathlib import Path

import pytest

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.durability.lives import newest_life, remove_others
from paramfleet_shared.errors.logs import DataFolderError


@pytest.fixture
def user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path, user: str) -> None:
    (tmp_path / "data").write_text("a file")

    with pytest.raises(DataFolderError, match=rf"data/job/pserver-0 .*as user {user}"):
        DataFolder(tmp_path / "data", "job", 0)


def test_a_folder_that_can_not_be_looked_through_is_named(tmp_path: Path, user: str) -> None:
    with pytest.raises(DataFolderError, match=rf"as user {user}"):
        DataFolder.find(tmp_path, 300 * "x")


def test_a_run_that_can_not_be_begun_is_named(tmp_path: Path, user: str) -> None:
    folder = DataFolder(tmp_path, "job", 0)
    folder.run(3).write_text("a file")

    with pytest.raises(DataFolderError, match=rf"pserver-0 .*as user {user}"):
        folder.begin(3)

    folder.close()


@pytest.mark.parametrize("linked", ["job", "job/pserver-0"])
def test_a_link_is_no_data_folder(tmp_path: Path, linked: str) -> None:
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(elsewhere)

    with pytest.raises(DataFolderError, match=r"is a link, which may lead anywhere"):
        DataFolder(root, "job", 0)

    assert not list(elsewhere.rglob("lock"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    DataFolder(tmp_path, "job", 0).close()
    os.chown(tmp_path / "job" / "pserver-0", 65534, 65534)

    with pytest.raises(
        DataFolderError, match=r"pserver-0 belongs to another user \(id 65534\)"
    ):
        DataFolder(tmp_path, "job", 0)


def test_a_link_instead_of_a_run_is_left_alone(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data", "job", 0)
    (tmp_path / "elsewhere").mkdir()
    folder.run(7).symlink_to(tmp_path / "elsewhere")
    folder.begin(8)

    assert folder.remove_runs() == [8]
    assert (tmp_path / "elsewhere").is_dir()
    folder.close()


def test_a_link_instead_of_an_owners_folder_is_not_followed(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run-7", tmp_path / "elsewhere"
    for folder in (run, elsewhere):
        folder.mkdir()
        (folder / "snapshot-5.state").touch()
    assert newest_life(run).path == run
    (run / "term-99999-5").symlink_to(elsewhere)

    assert newest_life(run).path == run
    remove_others(run, run)
    assert (elsewhere / "snapshot-5.state").exists()


def test_a_folder_of_runs_that_can_not_be_looked_through_is_named(
    tmp_path: Path, user: str
) -> None:
    with pytest.raises(DataFolderError, match=rf"as user {user}"):
        DataFolder.has_run(tmp_path, 300 * "x", 0)
