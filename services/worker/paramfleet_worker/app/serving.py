"""What ``paramfleet serve --from job:NAME`` has of a job that runs on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paramfleet_serving.jobs.finding import launched_job
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
    job = launched_job(replace(settings, job=name))
    if job is None:
        return {}
    found = {"PARAMFLEET_REDIS": job.redis}
    if job.tls_dir:
        found["PARAMFLEET_TLS_DIR"] = job.tls_dir
    elif job.secret_file.exists() and "PARAMFLEET_SECRET" not in environment:
        found["PARAMFLEET_SECRET_FILE"] = str(job.secret_file)
    return {each: value for each, value in found.items() if each not in environment}


def _followed(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the job that is to be followed; empty for none."""
    source = environment.get("PARAMFLEET_SERVING__SOURCE", "")
    for index, each in enumerate(arguments):
        flag, _, value = each.partition("=")
        if flag in _SOURCES:
            source = value or (arguments[index + 1] if index + 1 < len(arguments) else "")
    return source.removeprefix(_JOB) if source.startswith(_JOB) else ""
