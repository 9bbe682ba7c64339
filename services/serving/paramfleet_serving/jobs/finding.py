"""Where a job is that this user runs on this machine: each launch has another secret."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from paramfleet_shared.files.job_folder import JobFolder, UnsafeFolderError, runtime_dir
from paramfleet_shared.settings.config import JobSettings

__all__ = ["LaunchedJob", "found_settings", "is_same_registry", "launched_job"]

_USUAL = JobSettings().redis
"""Where a registry is if nobody says so."""


class LaunchedJob(NamedTuple):
    """A job that runs here, by the folder of its launch."""

    redis: str
    """Where its registry is."""
    tls_dir: str
    """Of its certificates; empty if it has none."""
    secret_file: Path
    """Proves that it may be read, where it has no certificates."""


def launched_job(settings: JobSettings) -> LaunchedJob | None:
    """Return where a job is now; None if this user launched none of the name here.

    A job of this name that has another registry than the one that was named is another job.

    Args:
        settings: The job's name, and where it was, or is said to be.
    """
    try:
        folder = JobFolder.find(runtime_dir(settings.runtime_dir), settings.job)
    except UnsafeFolderError:
        return None
    facts = None if folder is None else folder.facts()
    if folder is None or facts is None:
        return None
    if settings.redis != _USUAL and not is_same_registry(settings.redis, facts.redis):
        return None
    return LaunchedJob(facts.redis, facts.tls_dir, folder.secret_file)


def found_settings(settings: JobSettings) -> JobSettings:
    """Return the settings of a job as they are now; as they were, if it wasn't launched here.

    Args:
        settings: The job's name, and where it was.
    """
    found = launched_job(settings)
    if found is None:
        return settings
    secret = settings.secret
    if not found.tls_dir:
        try:
            secret = found.secret_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return settings  # it begins, or ends
    return replace(settings, redis=found.redis, tls_dir=found.tls_dir, secret=secret)


def is_same_registry(first: str, second: str) -> bool:
    """Return whether two addresses are of one registry, whatever they say of users."""
    one, other = urlsplit(first), urlsplit(second)
    return (one.hostname, one.port, one.path) == (other.hostname, other.port, other.path)
