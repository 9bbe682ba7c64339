"""A process that has imported a program before it is known what the program is to do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_worker.process.children.standby import MAX_ORDER_BYTES, Standby

PROGRAM = """
import json, os, sys

def prepare():
    print("prepared", flush=True)

def main(words):
    print(json.dumps([words, sys.argv, sorted(os.environ), sys.stdin.read(), os.getpid()]))
"""

COMMAND = [sys.executable, "-P", "-m", "program", "--port=1", "a b"]


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    return {**read_environment(), "PYTHONPATH": str(tmp_path)}


@pytest.fixture
def standby(keeper: Keeper) -> Iterator[Standby]:
    standby = Standby("program", keeper)
    yield standby
    standby.close()


def output_of(process: subprocess.Popen[bytes]) -> list[str]:
    """Return the lines of a process that ends well; its pipes are closed afterwards."""
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = process.stdout.read().decode().splitlines()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    return lines


def test_it_becomes_the_command_with_its_environment_and_without_input(
    standby: Standby, environment: dict[str, str]
) -> None:
    standby.start(environment)

    process = standby.take(COMMAND, {"PATH": "/bin", "OWN": "1"})

    assert process is not None
    prepared, said = output_of(process)
    assert prepared == "prepared"
    words = '["--port=1", "a b"]'
    program = '["program", "--port=1", "a b"]'
    assert said == f'[{words}, {program}, ["OWN", "PATH"], "", {process.pid}]'


def test_it_is_taken_once(standby: Standby, environment: dict[str, str]) -> None:
    standby.start(environment)
    process = standby.take(COMMAND, environment)
    assert process is not None

    assert standby.take(COMMAND, environment) is None
    assert len(output_of(process)) == 2


def test_no_second_one_starts_beside_it(
    standby: Standby, environment: dict[str, str], tmp_path: Path
) -> None:
    standby.start(environment)
    (tmp_path / "program" / "__main__.py").write_text("raise SystemExit(1)")

    standby.start({})  # it couldn't import the program

    process = standby.take(COMMAND, environment)
    assert process is not None
    with process:
        process.kill()


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-P", "-m", "another"],
        [sys.executable, "train.py"],
        ["redis-server"],
        [*COMMAND, "x" * MAX_ORDER_BYTES],
    ],
    ids=["program", "script", "executable", "too-long"],
)
def test_it_waits_on_if_it_cannot_become_the_command(
    standby: Standby, environment: dict[str, str], command: list[str]
) -> None:
    standby.start(environment)

    assert standby.take(command, {}) is None
    process = standby.take(COMMAND, environment)

    assert process is not None
    assert len(output_of(process)) == 2


def test_without_a_process_nothing_is_taken(standby: Standby) -> None:
    assert standby.take(COMMAND, {}) is None


def test_after_one_has_ended_another_can_start(
    standby: Standby, environment: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "program" / "__main__.py"
    text, fifo = program.read_text(), tmp_path / "fifo"
    os.mkfifo(fifo)
    program.write_text(f"open({str(fifo)!r}, 'w').close(); raise SystemExit(1)")
    standby.start(environment)
    fifo.read_text()  # returns once it runs
    program.write_text(text)
    process = standby._process  # the one that ends
    assert process is not None
    process.wait()

    assert standby.take(COMMAND, environment) is None
    standby.start(environment)

    process = standby.take(COMMAND, environment)
    assert process is not None
    assert len(output_of(process)) == 2


def test_closing_ends_it(standby: Standby, environment: dict[str, str]) -> None:
    standby.start(environment)
    process = standby._process
    assert process is not None

    standby.close()

    assert process.returncode == -signal.SIGKILL
    assert standby.take(COMMAND, environment) is None


def test_it_ends_if_no_order_comes(standby: Standby, environment: dict[str, str]) -> None:
    standby.start(environment)
    process, standby._process = standby._process, None
    assert process is not None
    assert process.stdin is not None

    process.stdin.close()

    assert output_of(process) == ["prepared"]
