"""Names of a launch: the job's, if none was given, and that of the launch itself."""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paramfleet_shared.settings.config import JobSettings, resolve
from paramfleet_shared.system.processes.own_modules import OF_OURS
from paramfleet_worker.config import LaunchSettings

__all__ = ["job_settings_of", "launch_of", "with_name"]

_MAX_STEM = 40
"""Characters of a job's name that come from its script's."""


def job_settings_of(environment: Mapping[str, str]) -> JobSettings:
    """Return the settings that the processes of the job will share.

    Raises:
        SettingError: if one is wrong.
        UnknownSettingError: if nothing reads one.
    """
    file = environment.get("PARAMFLEET_CONFIG")
    return resolve(
        JobSettings,
        section="",
        arguments={},
        environment=environment,
        file=Path(file) if file else None,
    ).value


def with_name(settings: LaunchSettings, *, script: Sequence[str]) -> LaunchSettings:
    """Return the settings with a name for the job.

    Where none is given it is the script's name with random digits, so that jobs that share a
    Redis don't conflict. On several machines the digits follow from the addresses, because the
    same command must give the same name on each. With certificates it is their default name,
    because they stand for one job alone.

    Args:
        settings: What the user asked for.
        script: The training script, or the runner with a model, and arguments.
    """
    if settings.job:
        return settings
    if settings.tls_dir or settings.tls_cert:
        return replace(settings, job=JobSettings().job)
    several = settings.several_machines
    digits = _digest(settings)[:6] if several else secrets.token_hex(3)
    return replace(settings, job=f"{_stem(script)}-{digits}")


def launch_of(settings: LaunchSettings) -> str:
    """Return the name of the launch: random, or, on several machines, the same on each."""
    return _digest(settings)[:16] if settings.several_machines else secrets.token_hex(8)


def _digest(settings: LaunchSettings) -> str:
    topology = (settings.job, settings.servers, settings.workers, settings.coordinator)
    words = "\n".join("".join(text.split()) for text in (*topology, settings.redis))
    return hashlib.sha256(words.encode()).hexdigest()


def _stem(script: Sequence[str]) -> str:
    """Return the name of a script, or of a model's folder, in characters of a job's name."""
    if script[0] == OF_OURS[0]:  # the runner, and behind the next -m the model's file
        name = Path(script[script.index("-m", len(OF_OURS)) + 1]).parent.name
    else:
        name = Path(script[0]).stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:_MAX_STEM].strip(".-")
    return plain or "job"
