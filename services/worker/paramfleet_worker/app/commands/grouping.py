"""A command that does something alone, and has others behind it."""

from typing import Any

import click
from click.core import ParameterSource

from paramfleet_shared.settings.cli import BoundedGroup

__all__ = ["group_of"]


def group_of(name: str, alone: click.Command, help: str) -> click.Group:  # noqa: A002 (click's own word)
    """Return a group that runs a command where none is named.

    Its options, before the name of another command, are an error: that has its own.

    Args:
        name: Of the group.
        alone: What it runs.
        help: Of the group.
    """

    def run(context: click.Context, /, **options: Any) -> None:
        if context.invoked_subcommand is None:
            assert alone.callback is not None, "it is a command"
            alone.callback(**options)
            return
        given = [
            option
            for option in options
            if context.get_parameter_source(option) is ParameterSource.COMMANDLINE
        ]
        if given:
            flag = given[0].replace("_", "-")
            where = context.invoked_subcommand
            problem = f"--{flag} is before {where!r}: put it after that"
            raise click.UsageError(problem)

    return BoundedGroup(
        name,
        params=alone.params,
        callback=click.pass_context(run),
        invoke_without_command=True,
        help=help,
    )
