"""Where a job is that this user runs on this machine: each launch has another secret."""

from dataclasses import replace
from urllib.parse import urlsplit

from paramfleet_shared.files.job_folder import JobFolder, UnsafeFolderError, runtime_dir
from paramfleet_shared.settings.config import JobSettings

__all__ = ["found_settings", "is_same_registry"]

_USUAL = JobSettings().redis
"""Where a registry is if nobody says so."""


def found_settings(settings: JobSettings) -> JobSettings:
    """Return where a job is now, by the folder of its launch; as it was, if it has none.

    A job of this name that has another registry than the one that was named is another job.

    Args:
        settings: The job's name, and where it was.
    """
    try:
        folder = JobFolder.find(runtime_dir(settings.runtime_dir), settings.job)
    except UnsafeFolderError:
        return settings
    facts = None if folder is None else folder.facts()
    if folder is None or facts is None:
        return settings
    if settings.redis != _USUAL and not is_same_registry(settings.redis, facts.redis):
        return settings
    secret = settings.secret
    if not facts.tls_dir:
        try:
            secret = folder.secret_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return settings  # it begins, or ends
    return replace(settings, redis=facts.redis, tls_dir=facts.tls_dir, secret=secret)


def is_same_registry(first: str, second: str) -> bool:
    """Return whether two addresses are of one registry, whatever they say of users."""
    one, other = urlsplit(first), urlsplit(second)
    return (one.hostname, one.port, one.path) == (other.hostname, other.port, other.path)
