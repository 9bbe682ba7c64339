"""Text that a stranger chose, on the launcher's terminal; and logs that vanish."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]")
LOCAL = ("--server_num=1", "--worker_num=2")


def test_an_exceptions_text_reaches_the_terminal_without_control_characters(
    launch: Callable[..., Any],
) -> None:
    body = r"""
        if who == "worker 1":
            raise RuntimeError("\x1b]0;owned\x07\x1b[2J\rgone\x08\x9b31m\u202eexe.png")
        wait()
        """
    launched = launch(body, *LOCAL)

    assert launched.read_to_end() == 1

    assert CONTROLS.search(launched.text) is None
    assert launched.text.isascii()
    assert r"\x1b]0;owned\x07" in launched.text, "and it can be read"


def test_a_failure_in_the_registry_reaches_the_terminal_without_control_characters(
    launch: Callable[..., Any],
) -> None:
    body = r"""
        if who == "worker 1":
            async def train(session):
                await session.fail("\x1b]0;owned\x07\rall is well\u202e" + "y" * 100_000)
            take_part(train)
        take_part()
        """
    launched = launch(body, *LOCAL)

    assert launched.read_to_end() != 0

    assert CONTROLS.search(launched.text) is None
    assert "y" * 3000 not in launched.text
    assert r"\x1b]0;owned" in launched.text


def test_a_log_that_is_removed_while_the_job_runs_is_made_again(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    body = """
        if who != "worker 1":
            wait()
        say("first")
        while os.path.exists("log/workerlog.1"):
            pass
        say("second")
        wait_for = "go-on"
        while not os.path.exists(wait_for):
            pass
        raise RuntimeError("third")
        """
    launched = launch(body, *LOCAL)
    launched.read_until("[worker 1] first")
    log = tmp_path / "log" / "workerlog.1"
    log.unlink()
    launched.read_until("[worker 1] second")
    assert log.read_text() == "second\n"

    log.unlink()
    (tmp_path / "go-on").touch()
    launched.read_to_end()

    assert any(line.endswith("RuntimeError: third") for line in launched.said)
    assert log.read_text().endswith("RuntimeError: third\n")
