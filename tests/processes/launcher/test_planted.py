"""What others have put into the working folder is never imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked(False)]

PLANTED = """
import os, sys
from pathlib import Path

words = Path("/proc/self/cmdline").read_bytes().decode().split("\\0")
Path({folder!r}, f"ran-{{os.getpid()}}").write_text(" ".join(words))
raise ImportError("planted")
"""

SCRIPT = """
import paramfleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.stop_worker()
"""


def planted(folder: Path) -> Path:
    """Make a folder with modules that leave a note when they are imported."""
    folder.mkdir()
    for name in ("numpy", "redis", "paramfleet_shared"):
        (folder / f"{name}.py").write_text(PLANTED.format(folder=str(folder)))
    return folder


def run(folder: Path, *words: str) -> None:
    """Run ``paramfleet`` in a folder, as its users do."""
    command = [str(Path(sys.executable).with_name("paramfleet")), *words]
    done = subprocess.run(
        tied(command),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=9 * LATE_S,  # a run of verify may stand still for 60 s
        check=False,
    )
    assert [path.read_text() for path in folder.glob("ran-*")] == []
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_job_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    run(planted(tmp_path / "shared"), "launch", "--worker_num=1", "--server_num=1", str(script))


def test_verify_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    run(planted(tmp_path / "shared"), "verify", "--runs=1", "--mode=async", "--jobs=1")
