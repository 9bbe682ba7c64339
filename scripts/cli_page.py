"""Write ``docs/cli.md`` from the parser of the ``paramfleet`` command: ``make docs``.

What stands there is what ``--help`` says. A test compares the page with it.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from paramfleet.runner.__main__ import main as runner
from paramfleet_coordinator.__main__ import main as coordinator
from paramfleet_pserver.__main__ import main as pserver
from paramfleet_serving.__main__ import main as serve
from paramfleet_shared.settings.option_groups import (
    FINDING,
    JOB,
    SECURITY,
    without_common_options,
    write_options,
)
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.commands.certs import certs
from paramfleet_worker.app.commands.data import data
from paramfleet_worker.app.commands.deltas import delta
from paramfleet_worker.app.commands.tokens import tokens
from paramfleet_worker.app.commands.verify import verify
from paramfleet_worker.app.doctor.report import doctor
from paramfleet_worker.app.planning.command import plan

__all__ = ["PAGE", "render"]

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """\
# Commands

This page is written by `make docs`. It is what `--help` prints; options that many commands have
stand here only once. [Configuration](configuration.md) describes each setting and the
environment variable that sets it. The exit code of a command is 0 if it succeeded.

## Common options
"""

DELEGATED: dict[str, click.Command] = {
    "coordinator": coordinator,
    "pserver": pserver,
    "serve": serve,
    "certs": certs,
    "data": data,
    "delta": delta,
    "doctor": doctor,
    "plan": plan,
    "tokens": tokens,
    "verify": verify,
}
"""Commands of modules that are imported only when one is called."""

WIDTH = 92


def render() -> str:
    """Return the page."""
    commands = {**main.commands, **DELEGATED}
    if isinstance(runner, click.Group):
        commands |= runner.commands
    with without_common_options():
        sections = list(_sections(commands, "paramfleet", depth=2))
    return "\n".join([HEAD, *_common(commands), *sections])


def _common(commands: dict[str, click.Command]) -> Iterator[str]:
    """Yield the groups of options that many commands have, from one that has each."""
    for group, name in ((FINDING, "status"), (JOB, "coordinator"), (SECURITY, "coordinator")):
        context = click.Context(commands[name], terminal_width=WIDTH, max_content_width=WIDTH)
        formatter = context.make_formatter()
        options = [
            each
            for each in commands[name].get_params(context)
            if getattr(each, "group", None) == group
        ]
        write_options(options, context, formatter)
        yield f"```text\n{formatter.getvalue().strip()}\n```\n"


def _sections(commands: dict[str, click.Command], prefix: str, *, depth: int) -> Iterator[str]:
    for name, command in sorted(commands.items()):
        if command.hidden:
            continue
        title = f"{prefix} {name}"
        context = click.Context(
            command, info_name=title, terminal_width=WIDTH, max_content_width=WIDTH
        )
        yield f"{'#' * depth} {title}\n"
        yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
        if isinstance(command, click.Group):
            yield from _sections(dict(command.commands), title, depth=depth + 1)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
