"""``paramfleet checkpoint load``: a running job goes back to a checkpoint."""

import asyncio
from typing import Any

import click

from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.settings.cli import echo
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.commands.arguments import FiniteRange
from paramfleet_worker.app.commands.operating import job_command, require_going_on, show
from paramfleet_worker.app.operating import Operator

__all__ = ["LOAD_CHECKPOINT"]

_POLL_S = 0.2
_NOT_ALL = 3
"""Exit status: it is loaded, and something of the model stays as it was."""
_NOT_YET = 4
"""Exit status: nobody knows as yet."""


def _load(operator: Operator, options: dict[str, Any]) -> None:
    """Load CHECKPOINT into a running job, and wait until it is loaded.

    All pservers and workers load it between two steps, and then continue the training: tables
    with the states of their optimizers, buffers, and schedules. Positions in data are not
    changed. CHECKPOINT is a folder or an address that pservers and worker 0 can read, below one
    of the pservers' checkpoint_dirs.

    The exit code is 1 if it was not loaded, 3 if it was loaded but lacks a part of the model,
    which keeps its values, and 4 if there is no result within --timeout.

    Raises:
        ClickException: if it was not loaded.
        Exit: with 3 or 4.
    """
    clock = SystemClock()
    folder = str(place_of(options["checkpoint"]).absolute())
    timeout_s = options["timeout"]
    asked = operator.post("load", {"dirname": folder, "timeout_s": timeout_s})
    deadline = clock.monotonic() + timeout_s
    while True:
        status = operator.get("status")
        told = status["load"]
        is_told = told is not None and told["number"] >= asked["number"]
        if is_told and told["state"] != "waiting":
            break
        require_going_on(status)
        if clock.monotonic() >= deadline:
            where = "the workers have the command" if is_told else "worker 0 has no command yet"
            echo(
                f"{folder} isn't loaded yet: {where}; see `paramfleet status --json`",
                err=True,
            )
            raise click.exceptions.Exit(_NOT_YET)
        asyncio.run(clock.sleep(_POLL_S))
    if told["error"]:
        raise click.ClickException(str(told["error"]))
    lines = [f"{told['dirname']} is loaded, in {told['seconds']} s: step {told['step']}"]
    lines += [f"{name}: {rows}" for name, rows in sorted(told["tables"].items())]
    show(told, lines, options)
    if told["missing"]:
        names = ", ".join(map(str, told["missing"]))
        echo(f"not in the checkpoint, and as it was: {names}", err=True)
        raise click.exceptions.Exit(_NOT_ALL)


LOAD_CHECKPOINT = job_command(
    "checkpoint load",
    _load,
    click.Argument(["checkpoint"]),
    click.Option(
        ["--timeout"],
        type=FiniteRange(min=0, min_open=True, max=86_400),
        default=600.0,
        help="Seconds to wait for the workers. After that nothing is loaded.",
    ),
)
"""``paramfleet checkpoint load``."""
