"""The suite's runner: what it makes of the coverage data that the processes left."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parents[3] / "scripts" / "run_tests.py"

PROJECT = """
[tool.pytest.ini_options]
filterwarnings = ["error"]
asyncio_default_fixture_loop_scope = "function"
[tool.coverage.run]
branch = true
parallel = true
patch = ["subprocess"]
disable_warnings = ["no-data-collected"]
"""

A_TEST_WHOSE_PROCESS_DIED = """
from pathlib import Path

def test_a_killed_process_leaves_half_a_file():
    Path(".coverage.host.pid7.Xabcdefx").write_bytes(b"SQLite format 3")
    assert True
"""


A_TEST_THAT_STARTS_A_PROCESS = """
import subprocess, sys

def test_a_process_of_pytest_is_measured_and_not_what_it_starts():
    assert "coverage" in sys.modules
    ask = [sys.executable, "-c", "import sys; print('coverage' in sys.modules)"]
    assert subprocess.check_output(ask, text=True) == "False\\n"
"""


def run(tmp_path: Path, test: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the runner on a project that has one measured folder, and in it this test."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    room = tmp_path / "shared" / "paramfleet_shared" / "wire"
    room.mkdir(parents=True)
    (room / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, RUNNER, *options, "shared/paramfleet_shared/wire/test_it.py"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_half_a_data_file_is_named_and_fails_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, A_TEST_WHOSE_PROCESS_DIED)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert "left out: Couldn't use data file" in ran.stdout
    assert ".coverage.host.pid7.Xabcdefx" in ran.stdout


@pytest.mark.parametrize("processes", [0, 1])
def test_what_tests_start_is_not_measured(tmp_path: Path, processes: int) -> None:
    ran = run(tmp_path, A_TEST_THAT_STARTS_A_PROCESS, f"--numprocesses={processes}")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "test_it.py" in ran.stdout.partition("branch coverage")[2]
