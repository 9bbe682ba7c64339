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
    help="Serve the newest version of a model over HTTP: lookups of rows, and dense "
    "parameters. The model comes from a stream of changes in a folder, or from a running job.",
    run=run,
)

if __name__ == "__main__":
    main()
