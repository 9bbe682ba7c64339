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


def test_each_command_stands_in_a_group() -> None:
    shown = main.get_help(click.Context(main, info_name="paramfleet", terminal_width=80))

    groups = [line for line in shown.splitlines() if re.match(r"\w.*:$", line)]
    assert groups[1:3] == ["Train:", "Look at a running job:"]
    assert shown.partition("Other:")[2].split()[0] == "completion"
    assert len(shown.partition("Other:")[2].strip().splitlines()) == 1
    assert "..." not in shown.partition("Train:")[2], "a sentence is too long for the list"


def test_each_option_of_a_launch_stands_in_a_group() -> None:
    launch = main.commands["launch"]
    own = [
        name
        for each in launch.params
        if isinstance(each, click.Option) and getattr(each, "group", None) is None
        for name in each.opts
    ]

    assert own == ["-m", "--model", "-o", "--option"]
