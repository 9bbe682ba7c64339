"""How a command ends: its exit code, and an error as one line."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import click

from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.settings.cli import in_red
from paramfleet_shared.system.open_files import MORE_OPEN_FILES, num_open_files
from paramfleet_shared.values.texts import printable
from paramfleet_worker.process.interrupts import INTERRUPTED

__all__ = ["WorkingFolderError", "check_working_folder", "exit_code_of"]

_MORE_MEMORY = "raise its limit (ulimit -v, the container's), or use a machine that has more"


class WorkingFolderError(ContractError):
    """The folder in which a command was started is not there any more."""

    code = "contract.working_folder"
    sentence = "the working folder was removed: change to one that is there, and try again"


def check_working_folder() -> None:
    """Pass if there is a working folder; without one the libraries can't be imported.

    Raises:
        WorkingFolderError: if it was removed.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise WorkingFolderError from None


def exit_code_of(name: str, run: Callable[[], int], *, failed: int = 1) -> int:
    """Run a command; return its exit code, ``failed`` after an error, which is printed.

    An interrupt that the command doesn't take itself ends it with 130 and one line.

    Raises:
        UsageError: if the options can't be what was meant.
    """
    try:
        return run()
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    except (FleetError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            limit = f"the limit of open files, {num_open_files()} (ulimit -n), is reached"
            said = f"{limit}: {MORE_OPEN_FILES}"
        _say(f"paramfleet {name}: {said}")
        return failed
    except KeyboardInterrupt:
        _say(f"paramfleet {name}: interrupted")
        return INTERRUPTED
    except MemoryError as error:
        said = f"paramfleet {name}: the system gives it no more memory: {_MORE_MEMORY}"
        _say(f"{said} ({error})" if str(error) else said)
        return failed


def _say(text: str) -> None:
    click.echo(in_red(printable(text), sys.stderr), file=sys.stderr)
