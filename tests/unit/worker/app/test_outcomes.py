"""How a command ends."""

import errno
import os

import pytest

from paramfleet_shared.system.open_files import num_open_files
from paramfleet_worker.app.commands.outcomes import exit_code_of


def test_an_interrupt_ends_a_command_with_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> int:
        raise KeyboardInterrupt

    assert exit_code_of("launch", run) == 130

    assert capsys.readouterr().err == "paramfleet launch: interrupted\n"


def test_too_few_open_files_are_said_with_the_limit_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/dev/null")

    assert exit_code_of("launch", run) == 1

    said = capsys.readouterr().err
    limit = f"the limit of open files, {num_open_files()} (ulimit -n), is reached: "
    assert said.startswith(f"paramfleet launch: {limit}")
    assert "`ulimit -n 16384`" in said
