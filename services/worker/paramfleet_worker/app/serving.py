"""What ``paramfleet serve --from job:NAME`` has of a job that runs on this machine."""

from collections.abc import Mapping, Sequence

from paramfleet_shared.files.job_folder import JobFolder, UnsafeFolderError, runtime_dir
from paramfleet_shared.settings.config import JobSettings, resolve

__all__ = ["job_variables"]

_JOB = "job:"
_SOURCES = ("--from", "--source")


def job_variables(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say where a job is, and prove that it may be read.

    Args:
        arguments: Of the command.
        environment: This process's; what it says itself is left out.

    Returns:
        Nothing if no job of this user's on this machine is to be followed.
    """
    name = _followed(arguments, environment)
    if not name:
        return {}
    settings = resolve(JobSettings, section="", arguments={}, environment=environment).value
    try:
        folder = JobFolder.find(runtime_dir(settings.runtime_dir), name)
    except UnsafeFolderError:
        return {}
    facts = None if folder is None else folder.facts()
    if folder is None or facts is None:
        return {}
    found = {"PARAMFLEET_REDIS": facts.redis}
    if facts.tls_dir:
        found["PARAMFLEET_TLS_DIR"] = facts.tls_dir
    elif folder.secret_file.exists() and "PARAMFLEET_SECRET" not in environment:
        found["PARAMFLEET_SECRET_FILE"] = str(folder.secret_file)
    return {each: value for each, value in found.items() if each not in environment}


def _followed(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the job that is to be followed; empty for none."""
    source = environment.get("PARAMFLEET_SERVING__SOURCE", "")
    for index, each in enumerate(arguments):
        flag, _, value = each.partition("=")
        if flag in _SOURCES:
            source = value or (arguments[index + 1] if index + 1 < len(arguments) else "")
    return source.removeprefix(_JOB) if source.startswith(_JOB) else ""
