"""``paramfleet new``: writes a project."""

import shlex
import sys
from pathlib import Path

import click

from paramfleet_shared.settings.cli import BoundedCommand
from paramfleet_shared.values.texts import printable
from paramfleet_worker.app.commands.outcomes import exit_code_of

__all__ = ["new"]


def _new(folder: Path) -> None:
    """Create a small project in the folder NAME.

    It has a training script, a test and a README, and can be trained at once. Replace its data
    and its model by your own.
    """

    def run() -> int:
        from paramfleet_worker.app.beginning.new_project.writing import write_project  # noqa: PLC0415 -- slow

        written = write_project(folder)
        lines = [
            f"{folder} has {', '.join(path.name for path in written)}. To train:",
            f"  cd {shlex.quote(str(folder))}",
            "  paramfleet launch --server_num 1 --worker_num 2 train.py",
        ]
        click.echo(printable("\n".join(lines)))
        return 0

    sys.exit(exit_code_of("new", run))


new = BoundedCommand(
    "new",
    params=[click.Argument(["folder"], type=click.Path(path_type=Path), metavar="NAME")],
    callback=_new,
    help=_new.__doc__,
)
"""``paramfleet new``."""
