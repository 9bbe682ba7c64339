"""The project of ``paramfleet new``, as its user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.beginning.new_project.writing import write_project

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WITHIN_S = 200
"""Much more than it takes: other tests may run beside."""


def run(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        tied([sys.executable, "-m", *words]),
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )


def test_the_tests_of_a_new_project_pass(tmp_path: Path) -> None:
    write_project(tmp_path / "clicks")

    tested = run(tmp_path / "clicks", "pytest", "-q", "-p", "no:cacheprovider")

    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


@pytest.mark.forked
def test_a_new_project_trains_on_a_job(tmp_path: Path) -> None:
    write_project(tmp_path / "clicks")

    words = ("launch", "--server_num", "1", "--worker_num", "2", "train.py")
    trained = run(tmp_path / "clicks", "paramfleet_worker", *words)

    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout.splitlines()[-1])
    assert (result["workers"], result["steps"]) == (2, 500)
    assert result["last_loss"] < 0.8 * result["first_loss"]


@pytest.mark.forked
def test_a_demo_that_went_well_says_what_to_run_next(tmp_path: Path) -> None:
    ended = run(tmp_path, "paramfleet_worker", "demo", "--workers", "1", "--steps", "3")
    wrong = run(tmp_path, "paramfleet_worker", "demo", "--mode", "sink")

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["steps"] == 3
    assert "next: `paramfleet new NAME`" in ended.stderr.splitlines()[-1]
    assert wrong.returncode == 2
    assert "next:" not in wrong.stderr
