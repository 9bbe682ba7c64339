"""How a command ends: its exit code, and an error as one line."""

from collections.abc import Callable

import click

from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.settings.cli import echo

__all__ = ["exit_code_of"]


def exit_code_of(name: str, run: Callable[[], int], *, failed: int = 1) -> int:
    """Run a command; return its exit code, ``failed`` after an error, which is printed.

    Raises:
        UsageError: if the options can't be what was meant.
    """
    try:
        return run()
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    except (FleetError, OSError) as error:
        echo(f"paramfleet {name}: {error}", err=True)
        return failed
