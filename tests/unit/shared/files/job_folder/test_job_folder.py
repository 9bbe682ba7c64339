"""The folder of a running job: private, held by one launcher, found by its owner."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paramfleet_shared.files import job_folder
from paramfleet_shared.files.exclusion import HeldTooLongError
from paramfleet_shared.files.job_folder import (
    JobFacts,
    JobFolder,
    JobRunsError,
    UnsafeFolderError,
    runtime_dir,
    write_private,
)
from paramfleet_shared.system.processes.keeping import tied

FACTS = JobFacts(job="flights", launch="ab12", redis="unix:///tmp/x.sock", pid=7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return runtime_dir(str(tmp_path / "run"))


def test_folder_and_files_are_for_their_owner_alone(root: Path) -> None:
    folder = JobFolder.claim(root, "flights")
    folder.write_facts(FACTS)
    write_private(folder.secret_file, b"x")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (root, folder.path)}
    assert modes == {0o700}
    files = {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert files == {0o600}
    folder.close()


def test_a_second_claim_is_refused_by_name_and_changes_nothing(root: Path) -> None:
    first = JobFolder.claim(root, "flights")
    first.write_facts(FACTS)
    with pytest.raises(JobRunsError, match=r"process 7, launch ab12"):
        JobFolder.claim(root, "flights")
    assert first.facts() == FACTS
    other = JobFolder.claim(root, "census")
    other.close()
    first.close()


@pytest.fixture
def hanging(root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Return a launch that hangs while it holds the folder of all jobs."""
    odd = root / "odd"
    odd.mkdir(mode=0o700)
    os.mkfifo(odd / "job.json")  # who looks whose folder this is waits for it to be written
    code = (
        "import sys; from pathlib import Path\n"
        "from paramfleet_shared.files.job_folder import JobFolder\n"
        "JobFolder.claim(Path(sys.argv[1]), 'first')\n"
    )
    process = subprocess.Popen(tied([sys.executable, "-c", code, str(root)]))
    with (odd / "job.json").open("wb"):  # once it looks
        yield process
        process.kill()
        process.wait()


def test_who_waits_for_another_launch_is_told_for_which_and_gives_up(
    root: Path, hanging: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folder, "TOLD_AFTER_S", 0.1)
    monkeypatch.setattr(job_folder, "STUCK_AFTER_S", 0.5)
    said: list[str] = []

    with pytest.raises(HeldTooLongError, match=f"process {hanging.pid} on .*: end it if it"):
        JobFolder.claim(root, "second", said.append)

    assert len(said) == 1
    assert said[0].startswith(f"waiting for process {hanging.pid} on ")
    assert said[0].endswith(", which is making the folder of a job: end it if it hangs")


def test_who_waits_for_another_launch_goes_on_when_that_has_ended(
    root: Path, hanging: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folder, "TOLD_AFTER_S", 0.1)

    def end(_: str) -> None:
        (root / "odd" / "job.json").unlink()
        hanging.kill()

    folder = JobFolder.claim(root, "second", end)

    assert folder.is_held()
    folder.close()


def launch_and_die(root: Path, job: str) -> None:
    """Leave a job's folder as a launcher does that is killed."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from paramfleet_shared.files.job_folder import JobFacts, JobFolder\n"
        "folder = JobFolder.claim(Path(sys.argv[1]), sys.argv[2])\n"
        "folder.secret_file.write_text('old')\n"
        "folder.write_facts(JobFacts(job=sys.argv[2], launch='ab', redis='', pid=7))\n"
        "os._exit(9)"
    )
    died = subprocess.run(tied([sys.executable, "-c", code, str(root), job]), check=False)
    assert died.returncode == 9


def test_what_a_killed_launcher_left_is_cleared_away(root: Path) -> None:
    launch_and_die(root, "flights")
    assert (root / "flights" / "secret").exists()
    assert JobFolder.find(root, "flights") is None
    folder = JobFolder.claim(root, "flights")
    assert not folder.secret_file.exists()
    folder.close()


def test_every_launch_removes_what_killed_launchers_left_and_nothing_else(root: Path) -> None:
    launch_and_die(root, "flights-x7k2")
    living = JobFolder.claim(root, "census")
    assert not (root / "flights-x7k2").exists()
    living.write_facts(FACTS)
    write_private(living.secret_file, b"x")
    starting = JobFolder.claim(root, "clicks")  # has no facts yet
    (root / "mine").mkdir(mode=0o700)
    (root / "mine" / "secret").write_text("the user's own")
    (root / "notes").write_text("the user's own")

    JobFolder.claim(root, "other").close()

    left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    own = ["mine", "mine/secret", "notes"]
    assert left == [".lock", "census", "census/job.json", "census/secret", "clicks", *own]
    starting.close()
    living.close()


def test_launches_that_start_together_do_not_take_each_other_for_dead(root: Path) -> None:
    def launch(number: int) -> None:
        for _ in range(20):
            folder = JobFolder.claim(root, f"flights-{number}")
            folder.write_facts(FACTS)
            write_private(folder.secret_file, b"x")
            dead = JobFolder(root / f"dead-{number}")
            dead.path.mkdir(mode=0o700)
            dead.write_facts(FACTS)
            with ThreadPoolExecutor(1) as other:  # takes the dead one's name, or finds it gone
                other.submit(JobFolder.claim, root, dead.path.name).result().close()
            assert folder.secret_file.exists()
            folder.close()

    with ThreadPoolExecutor(6) as launches:
        for each in [launches.submit(launch, number) for number in range(6)]:
            each.result()
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_the_command_line_finds_the_jobs_that_run(root: Path) -> None:
    one, two = (JobFolder.claim(root, name) for name in ("flights", "census"))
    one.write_facts(FACTS)
    found = JobFolder.find(root, "flights")
    assert found is not None
    assert found.facts() == FACTS
    assert [folder.path.name for folder in JobFolder.running(root)] == [
        "flights"
    ]  # no facts yet
    one.close()
    two.close()
    assert JobFolder.find(root, "flights") is None
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_a_long_job_name_leaves_room_for_a_sockets_address(root: Path) -> None:
    folder = JobFolder.claim(root, "j" * 128)
    assert len(folder.path.name) <= 48
    other = JobFolder.claim(root, "j" * 127)
    assert other.path != folder.path
    folder.close()
    other.close()


def test_a_folder_that_others_may_read_is_refused(tmp_path: Path) -> None:
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o755)
    with pytest.raises(UnsafeFolderError, match="mode 0755"):
        runtime_dir(str(open_))


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(UnsafeFolderError, match="isn't a folder"):
        runtime_dir(str(tmp_path / "link"))


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    try:
        import os  # noqa: PLC0415 -- for this test alone

        os.chown(theirs, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give a folder away")
    with pytest.raises(UnsafeFolderError, match="belongs to user 12345"):
        runtime_dir(str(theirs))


def test_a_private_file_is_replaced_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_private(file, b"one")
    write_private(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_whose_way_others_may_change_is_refused(tmp_path: Path) -> None:
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=f"others may write to {open_} "):
        runtime_dir(str(open_ / "run"))
    open_.chmod(0o1777)  # as the temporary folder: each renames what is his own
    assert runtime_dir(str(open_ / "run")).is_dir()


def test_a_folder_below_another_users_is_refused_and_nothing_is_made_there(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    for mode in (0o755, 0o1777):  # its owner renames what is in it, sticky or not
        theirs.chmod(mode)
        os.chown(theirs, 12345, -1)
        with pytest.raises(UnsafeFolderError, match=f"{theirs} is another user's"):
            runtime_dir(str(theirs / "run"))
        assert not list(theirs.iterdir())


def test_a_folder_that_is_reached_by_a_link_others_may_replace_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    (open_ / "link").symlink_to(tmp_path / "own")
    with pytest.raises(UnsafeFolderError, match=f"others may write to {open_} "):
        runtime_dir(str(open_ / "link" / "run"))
