"""What ``--help`` shows is written for who runs a command, not for who calls its function."""

import re
from collections.abc import Iterator

import click
import pytest

from paramfleet.runner.__main__ import main as runner
from paramfleet_coordinator.__main__ import main as coordinator
from paramfleet_pserver.__main__ import main as pserver
from paramfleet_serving.__main__ import main as serving
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.commands.certs import certs
from paramfleet_worker.app.commands.deltas import delta
from paramfleet_worker.app.commands.tokens import tokens
from paramfleet_worker.app.doctor.report import doctor


def commands(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield command.name or "", command
    for each in getattr(command, "commands", {}).values():
        for name, inner in commands(each):
            yield f"{command.name} {name}", inner


ALL = [
    named
    for root in (main, runner, coordinator, pserver, serving, certs, delta, tokens, doctor)
    for named in commands(root)
]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_help_has_no_section_for_programmers(name: str, command: click.Command) -> None:
    shown = command.get_help(click.Context(command, info_name=name))

    assert "Usage:" in shown
    assert not re.search(r"\b(Args|Raises|Returns|Yields):", shown)
