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

Written by `make docs` from the parser; it is what `--help` prints. What each setting means, and
by which variable of the environment it can be set, is in [configuration](configuration.md). A
command's exit code is 0 if it did what it was asked to.
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
    return "\n".join([HEAD, *_sections(commands, "paramfleet", depth=2)])


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
