"""How a command ends."""

import pytest

from paramfleet_worker.app.commands.outcomes import exit_code_of


def test_an_interrupt_ends_a_command_with_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> int:
        raise KeyboardInterrupt

    assert exit_code_of("launch", run) == 130

    assert capsys.readouterr().err == "paramfleet launch: interrupted\n"
