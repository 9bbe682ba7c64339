"""Serve a change stream: ``python -m paramfleet_serving --help``."""

import click

from paramfleet_serving.app import run
from paramfleet_serving.config import ServingSettings
from paramfleet_shared.settings.cli import settings_command

__all__ = ["main"]

main: click.Command = settings_command(
    ServingSettings,
    name="paramfleet serve",
    section="serving",
    help="Serve the newest version of a model from the stream of its changes: lookups of rows, "
    "and dense parameters, over HTTP.",
    run=run,
)

if __name__ == "__main__":
    main()
