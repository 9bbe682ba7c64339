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
    help="Run the coordinator of a job. It assigns ranks, publishes which pserver has which "
    "shards, runs barriers and checks that every process is alive. The exit code is 0 if the "
    "job finished, and 1 if it failed.",
    run=run,
)

if __name__ == "__main__":
    main()
