"""What holds for every test, whatever started pytest: by runs of pytest on a small project."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

CONFTEST = Path(__file__).parents[1] / "conftest.py"

PROJECT = """
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
markers = ["slow_machine"]
asyncio_default_fixture_loop_scope = "function"
"""

OF_THE_STARTER = """
import os, signal, subprocess, sys
import pytest

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_takes(number):
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert ended.returncode == -number

def test_settings_of_jobs_are_gone_and_the_place_of_the_data_is_not():
    left = [name for name in os.environ if name.startswith(("PARAMFLEET", "PADDLE"))]
    assert left == ["PARAMFLEET_DATA"]
"""

PASSES_THE_SECOND_TIME = """
import pytest

@pytest.mark.slow_machine
def test_it_has_run_before(tmp_path_factory):
    marker = tmp_path_factory.getbasetemp() / "ran"
    had_run = marker.exists()
    marker.touch()
    assert had_run
"""

HOLDS_A_SERVER = """
import os, signal
from pathlib import Path

def test_it_is_there(redis_server):
    Path("pids").write_text(f"{os.getpid()} {redis_server.pid}\\n")
    signal.pause()
"""


def project(folder: Path, test: str) -> list[str]:
    """Make a project of this conftest and one test of real time; return pytest's command."""
    integration = folder / "tests" / "integration"
    integration.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    shutil.copy(CONFTEST, folder / "tests")
    (integration / "test_it.py").write_text(test)
    return [sys.executable, "-m", "pytest", "-q", "tests"]


def ignore_signals() -> None:
    """Do what ``nohup`` and shells without job control do to what they start, and more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def has_ended(process: int) -> bool:
    """Return whether the process of a pidfd ends in time; it has ended in the end."""
    ended = bool(select.select([process], [], [], LATE_S)[0])
    if not ended:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_neither_ignored_signals_nor_settings_of_the_starter_reach_a_test(
    tmp_path: Path, processes: int
) -> None:
    settings = {"PARAMFLEET_JOB": "flights", "PADDLE_TRAINER_ID": "3", "PARAMFLEET_DATA": "d"}
    ran = subprocess.run(
        tied([*project(tmp_path, OF_THE_STARTER), f"--numprocesses={processes}"]),
        cwd=tmp_path,
        env={**read_environment(), **settings},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=ignore_signals,
    )

    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
def test_no_test_gets_a_second_run_and_one_that_fails_says_what_the_machine_did(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        tied(project(tmp_path, PASSES_THE_SECOND_TIME)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed" in ran.stdout
    assert "The machine during this test" in ran.stdout
    assert "load average" in ran.stdout


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_pytest_that_was_killed_leaves_no_process(tmp_path: Path, processes: int) -> None:
    os.mkfifo(tmp_path / "pids")
    pids = os.open(tmp_path / "pids", os.O_RDWR)
    with (tmp_path / "log").open("wb") as log:
        command = [*project(tmp_path, HOLDS_A_SERVER), f"--numprocesses={processes}"]
        starter = subprocess.Popen(tied(command), cwd=tmp_path, stdout=log, stderr=log)
    try:
        assert select.select([pids], [], [], 60)[0], (tmp_path / "log").read_text()
        tester, server = map(os.pidfd_open, map(int, os.read(pids, 64).split()))
        # Stopped, it can't see that its starter is gone: only the kernel ends it.
        signal.pidfd_send_signal(tester, signal.SIGSTOP)
    finally:
        starter.kill()
        starter.wait()
        os.close(pids)

    ended = [has_ended(each) for each in (tester, server)]

    assert ended == [True, True]
