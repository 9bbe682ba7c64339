"""The folder of a process that was killed is removed by the next one, and no other is."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet_shared.files.held import FolderKind, ProcessFolder
from paramfleet_shared.system.processes.keeping import tied

KEEPS = FolderKind(prefix="a-", lock="lock", always_locked=False)
TAKES = KEEPS._replace(always_locked=True)

HOLD = """
import sys, time
from pathlib import Path
from paramfleet_shared.files.held import FolderKind, ProcessFolder
folder = ProcessFolder(Path(sys.argv[1]), FolderKind("a-", "lock", always_locked=False))
(folder.path / "stream.json").write_text("{}")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        other = Path(process.stdout.readline().strip())
        beside = ProcessFolder(tmp_path, KEEPS)
        assert (other / "stream.json").exists(), "its process lives"
        os.kill(process.pid, signal.SIGKILL)
    assert other.exists()

    own = ProcessFolder(tmp_path, KEEPS)

    assert sorted(tmp_path.iterdir()) == sorted([own.path, beside.path])
    assert own.path.stat().st_mode & 0o777 == 0o700


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    own = ProcessFolder(tmp_path, KEEPS)
    (own.path / "deep").mkdir()

    own.remove()
    own.remove()

    assert list(tmp_path.iterdir()) == []


def test_what_no_such_process_has_made_stays(tmp_path: Path) -> None:
    for name in ("a-0123456789abcdeg", "a-other", "b-0123456789abcdef", "a-0000000000000001"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "lock").write_text("")
    (tmp_path / "a-0000000000000001" / "lock").unlink()
    os.mkfifo(tmp_path / "a-0000000000000001" / "lock")
    (tmp_path / "a-0000000000000002").symlink_to(tmp_path / "a-other")
    (tmp_path / "a-0000000000000003").write_text("")
    before = sorted(tmp_path.rglob("*"))

    for kind in (TAKES, KEEPS):
        ProcessFolder(tmp_path, kind).remove()

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [TAKES, KEEPS])
def test_a_kind_says_whether_a_folder_without_a_lock_was_left(
    kind: FolderKind, tmp_path: Path
) -> None:
    (left := tmp_path / "a-0123456789abcdef").mkdir()

    ProcessFolder(tmp_path, kind).remove()

    assert left.exists() is not kind.always_locked


def test_where_there_are_no_locks_a_kind_does_without_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    own = ProcessFolder(tmp_path, KEEPS)
    other = ProcessFolder(tmp_path, KEEPS)
    assert own.path.exists(), "whose process lives can't be told"
    own.remove()
    other.remove()

    with pytest.raises(OSError, match="no locks"):
        ProcessFolder(tmp_path, TAKES)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        ProcessFolder(tmp_path / "missing", KEEPS)


def at_the_first_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let another process do something just before this one has its first lock."""
    lock, acts = fcntl.flock, [act]

    def flock(file: int, how: int) -> None:
        if acts:
            acts.pop()()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)


def refuse() -> None:
    raise BlockingIOError


@pytest.mark.parametrize("kind", [TAKES, KEEPS])
@pytest.mark.parametrize("is_removing", [True, False])
def test_a_process_that_tidies_meanwhile_takes_no_folder_away(
    is_removing: bool, kind: FolderKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove() -> None:
        shutil.rmtree(next(tmp_path.iterdir()))

    at_the_first_lock(monkeypatch, remove if is_removing else refuse)

    folder = ProcessFolder(tmp_path, kind)

    assert (folder.path / "lock").is_file()
    folder.remove()
    assert not folder.path.exists()


def test_it_ends_where_no_folder_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(file: int, how: int) -> None:
        refuse()

    monkeypatch.setattr(fcntl, "flock", always)

    with pytest.raises(OSError, match="no folder"):
        ProcessFolder(tmp_path, TAKES)
