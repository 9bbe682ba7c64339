"""``paramfleet completion``: what a shell needs to complete commands, options and jobs."""

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from paramfleet_shared.errors import FleetError
from paramfleet_shared.settings.cli import BoundedCommand
from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
from paramfleet_worker.app.finding import running_jobs

__all__ = ["completion", "files", "jobs"]

_PROGRAM = "paramfleet"
_VARIABLE = "_PARAMFLEET_COMPLETE"
"""By this click knows that a shell asks."""

_SHELLS = ("bash", "zsh", "fish")


def _completion(shell: str) -> None:
    """Print a script that adds completion to a shell.

    \b
    bash:  eval "$(paramfleet completion bash)"       in ~/.bashrc
    zsh:   eval "$(paramfleet completion zsh)"        in ~/.zshrc, behind compinit
    fish:  paramfleet completion fish | source        in ~/.config/fish/config.fish
    """  # noqa: D301 -- click's mark of lines that stay as they are
    made = get_completion_class(shell)
    assert made is not None, "click has one for each of the choices"
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, _PROGRAM, _VARIABLE).source())


completion = BoundedCommand(
    "completion",
    params=[click.Argument(["shell"], type=click.Choice(_SHELLS))],
    callback=_completion,
    help=_completion.__doc__,
)
"""``paramfleet completion``."""


def files(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete names of files, as of scripts."""
    return [CompletionItem(begun, type="file")]


def jobs(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete names of jobs: this user's, on this machine."""
    try:
        found: Any = resolve(
            JobSettings, section="", arguments={}, environment=read_environment()
        )
    except FleetError:  # a shell isn't where to say so
        return []
    return [CompletionItem(job) for job in running_jobs(found.value) if job.startswith(begun)]
