"""Run a job's coordinator: ``python -m paramfleet_coordinator --help``."""

import click

from paramfleet_coordinator.app import run
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.settings.cli import settings_command

__all__ = ["main"]

main: click.Command = settings_command(
    CoordinatorSettings,
    name="coordinator",
    section="coordinator",
    help="Run a job's coordinator: it gives out ranks, publishes the placement, runs barriers "
    "and watches every member. Ends with status 0 when the job finished, 1 when it failed.",
    run=run,
)

if __name__ == "__main__":
    main()
