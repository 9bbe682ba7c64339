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
from paramfleet_worker.app.commands.data import data
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
    for root in (
        main,
        runner,
        coordinator,
        pserver,
        serving,
        certs,
        data,
        delta,
        tokens,
        doctor,
    )
    for named in commands(root)
]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_help_has_no_section_for_programmers(name: str, command: click.Command) -> None:
    shown = command.get_help(click.Context(command, info_name=name))

    assert "Usage:" in shown
    assert not re.search(r"\b(Args|Raises|Returns|Yields):", shown)


def test_no_summary_in_a_list_of_commands_is_cut_at_80_columns() -> None:
    groups = [(name, each) for name, each in ALL if isinstance(each, click.Group)]
    assert len(groups) >= 6
    for name, group in groups:
        context = click.Context(group, info_name=f"paramfleet {name}", terminal_width=80)
        usage, *shown = group.get_help(context).splitlines()
        cut = [line for line in shown if line.endswith("...")]
        assert usage.startswith("Usage:")
        assert not cut, f"shorten the first sentences of {name}: {cut}"


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_the_usage_marks_each_word_that_may_be_left_out(
    name: str, command: click.Command
) -> None:
    usage = command.collect_usage_pieces(click.Context(command, info_name=name))
    required = [word for word in usage if not word.startswith("[")]
    needed = [
        each for each in command.params if isinstance(each, click.Argument) and each.required
    ]
    needs_command = isinstance(command, click.Group) and not command.invoke_without_command
    assert len(required) == len(needed) + needs_command, usage


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
