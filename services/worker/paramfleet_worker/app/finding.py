"""Which job an operator means, where its coordinator is, and by what token it is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from paramfleet_serving.jobs.finding import is_same_registry
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.job_folder import JobFolder, UnsafeFolderError, runtime_dir
from paramfleet_shared.net.secret import MIN_SECRET_LENGTH, JobSecret
from paramfleet_shared.settings.config import JobSettings, Resolved, resolve
from paramfleet_worker.process.admin_token import token_in

__all__ = ["Found", "NoJobError", "SeveralJobsError", "find_job", "running_jobs"]


class NoJobError(ContractError):
    """Nothing says which job is meant, or where it is."""

    code = "contract.no_job"
    job: str
    running: list[str]

    @override
    def describe(self) -> str:
        if self.job:
            others = f"; running are {', '.join(self.running)}" if self.running else ""
            said = f"no job {self.job} of yours runs here{others}: "
        else:
            said = "no job of yours runs here: start one with `paramfleet launch`; or "
        return said + (
            "give the name of a running job with --job, or for a job on another machine its "
            "registry (Redis) with --redis (or PARAMFLEET_REDIS), or the address of its page "
            "with --url"
        )


class SeveralJobsError(ContractError):
    """Several jobs run here, and none was named."""

    code = "contract.several_jobs"
    jobs: list[str]

    @override
    def describe(self) -> str:
        return (
            f"{len(self.jobs)} jobs of this user run here: {', '.join(self.jobs)}; name one "
            "with --job, or call this in the folder that one of them was launched from"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A job, found by the options, the environment and this user's running jobs."""

    settings: JobSettings
    """Its name, where its registry is, and its certificates."""

    url: str
    """Its coordinator's admin address; empty if the registry must be asked."""

    token: str
    """The token for its commands; empty without one."""

    folder: JobFolder | None
    """Its folder, if it was launched here by this user and runs."""

    names_registry: bool
    """Whether somebody says where its registry is; the usual place is no answer."""

    chosen: str = ""
    """Why it is this one of several that run here, in a line; empty if nothing was chosen."""


def find_job(
    given: Mapping[str, Any], environment: Mapping[str, str], *, url: str = ""
) -> Found:
    """Return the job that is meant: the one named, else this user's only one here.

    Of several it is the only one that was launched from the working folder.

    Args:
        given: ``job`` and ``redis`` as the command line has them; None for what it lacks.
        environment: This process's.
        url: The admin address that is to be asked; its job's token is shown to no other.

    Raises:
        SeveralJobsError: if none is named and it could be any of several.
        SettingError: if a setting is wrong.
    """
    resolved: Resolved[JobSettings] = resolve(
        JobSettings, section="", arguments=given, environment=environment
    )
    settings = resolved.value
    folder, others = _folder_of(resolved, url)
    has_registry = resolved.origins["redis"] != "default"
    facts = None if folder is None else folder.facts()
    if folder is None or facts is None:
        return Found(
            settings=settings,
            url=url,
            token=_token_of(settings),
            folder=None,
            names_registry=has_registry,
        )
    settings = replace(
        settings,
        job=facts.job,
        redis=settings.redis if has_registry else facts.redis,
        tls_dir=settings.tls_dir or facts.tls_dir,
        secret=settings.secret or _text_of(folder.secret_file),
    )
    found = url or _text_of(folder.admin_url_file)
    return Found(
        settings=settings,
        url=found,
        token=token_in(folder),
        folder=folder,
        names_registry=True,
        chosen=_why_this(facts.job, others),
    )


def running_jobs(settings: JobSettings) -> list[str]:
    """Return the names of this user's jobs that run on this machine."""
    try:
        root = runtime_dir(settings.runtime_dir)
    except UnsafeFolderError:
        return []
    return sorted({facts.job for each in JobFolder.running(root) if (facts := each.facts())})


def _folder_of(
    resolved: Resolved[JobSettings], url: str
) -> tuple[JobFolder | None, Sequence[str]]:
    """Return the folder of the job that is meant, if it runs here, and which others do.

    The others are those that it was chosen from.

    Raises:
        SeveralJobsError: if it could be any of several.
    """
    settings, origins = resolved.value, resolved.origins
    try:
        root = runtime_dir(settings.runtime_dir)
    except UnsafeFolderError:
        return None, ()  # then no job of ours keeps anything there
    if url:
        at = url.rstrip("/")
        running = JobFolder.running(root)
        found = next((each for each in running if _text_of(each.admin_url_file) == at), None)
        return found, ()
    has_registry = origins["redis"] != "default"
    if origins["job"] != "default":
        folder = JobFolder.find(root, settings.job)
        facts = None if folder is None else folder.facts()
        is_other = has_registry and facts and not is_same_registry(facts.redis, settings.redis)
        return (None if is_other else folder), ()
    return (None, ()) if has_registry else _only_one(root)


def _only_one(root: Path) -> tuple[JobFolder | None, Sequence[str]]:
    """Return the only job here, or of several the only one of the working folder.

    Raises:
        SeveralJobsError: if it could be any of several.
    """
    folders: dict[str, JobFolder] = {}
    own: list[str] = []
    here = _working_folder()
    for each in JobFolder.running(root):  # parts of one job have folders that begin alike
        if (facts := each.facts()) is not None and facts.job not in folders:
            folders[facts.job] = each
            if here and facts.folder == here:
                own.append(facts.job)
    if len(folders) <= 1:
        return next(iter(folders.values()), None), ()
    if len(own) != 1:
        raise SeveralJobsError(jobs=list(folders))
    return folders[own[0]], [job for job in folders if job != own[0]]


def _working_folder() -> str:
    """Return this process's; empty if it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _why_this(job: str, others: Sequence[str]) -> str:
    if not others:
        return ""
    return (
        f"this is job {job}, launched from this folder; for another one that runs here "
        f"({', '.join(others)}) give --job NAME"
    )


def _token_of(settings: JobSettings) -> str:
    """Return the token that a given secret stands for."""
    if len(settings.secret) < MIN_SECRET_LENGTH:
        return ""
    return JobSecret(settings.secret, settings.job).token("admin")


def _text_of(path: Any) -> str:
    try:
        return str(path.read_text("utf-8")).strip()
    except (OSError, UnicodeDecodeError):
        return ""
