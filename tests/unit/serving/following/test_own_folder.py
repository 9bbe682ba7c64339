"""The folder of a process that was killed is removed by the next one, and no other is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_serving.following.own_folder import OwnFolder
from paramfleet_shared.system.processes.keeping import tied

HOLD = """
import sys, time
from pathlib import Path
from paramfleet_serving.following.own_folder import OwnFolder
folder = OwnFolder(Path(sys.argv[1]))
(folder.path / "stream.json").write_text("{}")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        other = Path(process.stdout.readline().strip())
        beside = OwnFolder(tmp_path)
        assert (other / "stream.json").exists(), "its process lives"
        os.kill(process.pid, signal.SIGKILL)
    assert other.exists()

    own = OwnFolder(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([own.path, beside.path])
    assert own.path.stat().st_mode & 0o777 == 0o700


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    own = OwnFolder(tmp_path)
    (own.path / "deep").mkdir()

    own.remove()
    own.remove()

    assert list(tmp_path.iterdir()) == []


def test_what_no_such_process_has_made_stays(tmp_path: Path) -> None:
    names = ["paramfleet-stream-abcdefgh", "paramfleet-stream-other", "kept"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("")
    (tmp_path / "paramfleet-stream-other" / "process.lock").write_text("")
    os.mkfifo(tmp_path / "paramfleet-stream-abcdefgh" / "process.lock")
    (tmp_path / "paramfleet-stream-linked00").symlink_to(tmp_path / "kept")
    (tmp_path / "paramfleet-stream-somefile").write_text("")
    (tmp_path / "kept" / "process.lock").write_text("")
    before = sorted(tmp_path.rglob("*"))

    OwnFolder(tmp_path).remove()

    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        OwnFolder(tmp_path / "missing")
