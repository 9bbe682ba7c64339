"""A disk that is full: checkpoints fail by name, leave nothing behind, and training goes on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.manifest import read_manifest
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_ledger.py"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 256 KiB, most of it taken."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this system mounts no small file system: {mounted.stderr.strip()}")
    try:
        (folder / "filler").write_bytes(bytes(248 << 10))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def paramfleet(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tied([sys.executable, "-m", "paramfleet_worker", *args]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_checkpoint_by_command_on_a_full_disk_fails_by_name_and_training_goes_on(
    jobs: Any, tmp_path: Path, small_disk: Path, mode: str
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start(
        SCRIPT,
        "--mode",
        mode,
        "--until",
        str(enough),
        PARAMFLEET_COORDINATOR__CHECKPOINT_DIR=str(small_disk),
    )
    for rank in range(2):
        running.wait_for(f"worker{rank}", "training as")
    admin = running.admin()
    at_admin = ("--url", admin.url, "--token", running.token)
    admin.wait(lambda s: all((w["step"] or 0) > 5 for w in s["workers"]))

    refused = paramfleet("checkpoint", *at_admin, "--name", "one")

    assert refused.returncode == 1, refused
    assert "No space left on device" in refused.stderr
    assert "one" in refused.stderr
    assert left_in(small_disk) == {"filler"}
    at = admin.steps()
    admin.wait(lambda s: all(w["step"] > a + 5 for w, a in zip(s["workers"], at, strict=True)))
    (small_disk / "filler").unlink()
    written = paramfleet("checkpoint", *at_admin, "--name", "two")
    assert written.returncode == 0, written
    assert "pushes waited" in written.stdout
    assert left_in(small_disk) == {"two"}
    assert read_manifest(small_disk / "two").cut is not None

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def test_a_script_that_saves_on_a_full_disk_gets_the_error_and_may_train_on(
    jobs: Any, tmp_path: Path, small_disk: Path
) -> None:
    enough = tmp_path / "enough"
    args = ["--until", str(enough), "--save", str(small_disk / "one")]
    running = jobs.start(SCRIPT, *args)

    running.wait_for("worker0", "not saved: ")

    assert "No space left on device" in running.log("worker0")
    assert left_in(small_disk) == {"filler"}
    admin = running.admin()
    at = admin.steps()
    admin.wait(lambda s: all(w["step"] > a + 5 for w, a in zip(s["workers"], at, strict=True)))
    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
