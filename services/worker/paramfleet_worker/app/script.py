"""A user's script as a worker of a job that others started."""

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import NoReturn

from paramfleet_shared.config import JobSettings, Resolved

__all__ = ["become_worker", "worker_environment"]


def worker_environment(
    settings: Resolved[JobSettings], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which a script is a worker.

    ``PADDLE_TRAINER_ID`` stays as it is: where nobody gave an index, the coordinator
    assigns one.
    """
    named = {
        f"PARAMFLEET_{field.name.upper()}": str(getattr(settings.value, field.name))
        for field in fields(settings.value)
        if settings.origins[field.name] != "default" or field.name in {"job", "redis"}
    }
    return {**inherited, "TRAINING_ROLE": "TRAINER", "PYTHONUNBUFFERED": "1", **named}


def become_worker(
    script: tuple[str, ...], settings: Resolved[JobSettings], inherited: Mapping[str, str]
) -> NoReturn:
    """Replace this process by the script's own, with the same process id.

    The script is then a main program like any other: what it starts (data loaders that
    spawn) can import it, and signals and the exit code are its own.

    Args:
        script: The training script and its arguments.
        settings: Where the job is.
        inherited: This process's environment.

    Raises:
        OSError: if Python can't be started.
    """
    command = [sys.executable, *script]
    os.execve(command[0], command, worker_environment(settings, inherited))  # noqa: S606
