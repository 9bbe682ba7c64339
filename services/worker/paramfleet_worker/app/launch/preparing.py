"""What a launcher has before it starts anything: the job's folder, its secret, its warnings."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from paramfleet_shared.discovery.redis.config import MAX_SOCKET_BYTES
from paramfleet_shared.discovery.redis.serving import private_folder
from paramfleet_shared.discovery.redis.store import derived_password
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.logs import DataFolderError
from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir, write_private
from paramfleet_shared.files.regular_files import open_own
from paramfleet_shared.net.secret import new_secret, open_warnings, secret_of
from paramfleet_shared.settings.config import JobSettings, Resolved
from paramfleet_shared.settings.security import SecuritySettings
from paramfleet_worker.app.launch.former_logs import set_aside
from paramfleet_worker.app.launch.planning import REDIS, LaunchPlan
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.checkpoints.command_line import CommandLine
from paramfleet_worker.process.admin_token import admin_environment, prepare_admin_token

__all__ = [
    "OF_THE_JOB",
    "ColdFolderError",
    "LogDirError",
    "OpenRedisError",
    "PreparedLaunch",
    "RuntimeDirFullError",
    "prepared_launch",
]


class OpenRedisError(ContractError):
    """A Redis would be started that takes commands from whoever reaches it."""

    code = "contract.open_redis"
    where: str
    sentence = (
        "the Redis to start at {where} would accept commands from everyone who can reach it: "
        "give every machine the same password in PARAMFLEET_REDIS_PASSWORD_FILE, or the same "
        "secret in PARAMFLEET_SECRET_FILE (`paramfleet secret FILE` makes one)"
    )


class LogDirError(ContractError):
    """The folder for logs can't be written to."""

    code = "contract.log_dir"
    path: str
    reason: str
    sentence = "the log folder {path} can't be used: {reason}; choose another with --log_dir"


class RuntimeDirFullError(ContractError):
    """The folder in which running jobs have theirs is on a disk without room."""

    code = "contract.runtime_dir_full"
    path: str
    reason: str
    sentence = (
        "the folder of running jobs, {path}, can't be written to: {reason}; make room on that "
        "disk, or choose a folder on another with --runtime_dir"
    )


class ColdFolderError(ContractError):
    """Pservers have a memory budget, and no folder for the rows beyond it."""

    code = "contract.cold_folder"
    variable: str
    sentence = (
        "{variable} gives pservers a memory budget, but there is no folder for further rows: "
        "set PARAMFLEET_PSERVER__COLD_DIR to a folder on a fast disk, or give --data_dir"
    )


_BUDGETS = (
    "PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES",
    "PARAMFLEET_PSERVER__TABLE_MEMORY_BUDGETS",
)
OF_THE_JOB = frozenset({
    "chaos", "checkpoint_dirs", "coordinator", "durability", "elastic", "ips", "job",
    "max_restarts", "nproc_per_node", "ray_cpus", "ray_gpus", "redis", "replicas",
    "rerun_script", "server_num", "servers", "worker_num",
})  # fmt: skip
"""Options that change the job, and that few scripts have for something else."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_COLD_FOLDERS = ("PARAMFLEET_PSERVER__COLD_DIR", "PARAMFLEET_PSERVER__DATA_DIR")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedLaunch:
    """A plan, and what it needs on this machine."""

    plan: LaunchPlan
    job: JobSettings
    """As the job's processes have them: its registry and what protects it."""
    folder: JobFolder
    """Held until the launch ends."""
    environment: Mapping[str, str]
    """What the processes inherit."""
    lines: tuple[str, ...]
    """What its console says first: the settings that are given, and what they leave open."""
    opens_page: bool = False
    """Whether the job's page is to be opened in a browser."""
    again: CommandLine = field(default_factory=CommandLine)
    """How the launch was called."""

    @property
    def redis_password(self) -> str:
        """Return what a Redis that this launcher starts asks for; empty on a Unix socket."""
        address = self.plan.redis
        if address is None or address.socket:
            return ""
        return address.password or self.job.redis_password or derived_password(self.job)


@contextmanager
def prepared_launch(
    resolved: Resolved[LaunchSettings], plan: LaunchPlan, environment: Mapping[str, str]
) -> Iterator[PreparedLaunch]:
    """Have the job's folder, with its secret in it, until this ends.

    Logs of a former launch are set aside once nothing keeps this one from its start.

    Args:
        resolved: What the user asked for.
        plan: What to start.
        environment: This process's.

    Raises:
        HeldTooLongError: if another launch hangs that makes the folder of its job.
        JobRunsError: if a job of this name runs here already.
        UnsafeFolderError: if somebody else could read its folder.
        OpenJobError: if several machines would have neither certificates nor a secret.
        OpenRedisError: if a Redis would be started that asks for no password.
        DataFolderError: if pservers couldn't write to the data folder.
        ColdFolderError: if they have a memory budget, and no folder for the rows beyond it.
        LogDirError: if nobody could write to that of the logs.
        RuntimeDirFullError: if the disk of the job's folder has no room.
        OSError: if another file can't be written.
    """
    settings = resolved.value
    if plan.data_dir and settings.on != "ray":
        _require_data_dir(Path(plan.data_dir))
    own = dict(environment) | _given(resolved)
    _require_cold_dir(plan, own)
    if settings.several_machines:
        secret_of(settings.job_settings(plan.facts.redis))
    with ExitStack() as stack:
        root = runtime_dir(settings.runtime_dir)
        folder = _claimed(root, plan.folder_name, stack)
        if not plan.facts.redis:
            plan = _on_socket(plan, _socket_of(folder, stack))
        job = settings.job_settings(plan.facts.redis)
        if _needs_secret(settings, plan):
            job = replace(job, secret=new_secret())
            with _named(root):
                write_private(folder.secret_file, job.secret.encode() + b"\n")
            own["PARAMFLEET_SECRET_FILE"] = str(folder.secret_file)
        if settings.on == "ray":
            own |= _as_text(job)
        elif plan.alone:
            with _named(root):
                prepare_admin_token(folder)
            own |= admin_environment(folder, job)
        secret_of(job)
        given = resolved.lines(given=True)
        found = open_warnings(resolved.origins, job, environment)
        warnings = [f"warning: {each}" for each in (*found, *_of_the_script(plan.script))]
        asked, plan = plan.facts.log_dir, _with_own_logs(plan, stack)
        if plan.facts.log_dir != asked:
            other = f"{asked} is in use by another job; the logs of this one are in "
            warnings.append(f"warning: {other}{plan.facts.log_dir}")
        prepared = PreparedLaunch(
            plan=plan,
            job=job,
            folder=folder,
            environment=own,
            lines=(*given, *warnings),
            opens_page=settings.open,
        )
        _require_closed(prepared)
        with _named(root):
            _write_facts(prepared)
        if plan.alone:  # else another machine's launcher may write there now
            set_aside(Path(plan.facts.log_dir))
        yield prepared


def _claimed(root: Path, job: str, stack: ExitStack) -> JobFolder:
    """Return the job's folder, held until the stack ends.

    Raises:
        FleetError: as ``prepared_launch``.
    """
    with _named(root):
        folder = JobFolder.claim(root, job)
        stack.callback(folder.close)
        folder.endings.mkdir(mode=0o700)
    return folder


@contextmanager
def _named(root: Path) -> Iterator[None]:
    """Have a disk without room name the folder that is on it.

    Raises:
        RuntimeDirFullError: if there is none.
        OSError: if something else is refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        reason = error.strerror or str(error)
        raise RuntimeDirFullError(path=str(root), reason=reason) from error


def _of_the_script(script: Sequence[str]) -> Iterator[str]:
    """Yield a warning of the job's options after the script, which gets them as its own."""
    words = [word.partition("=")[0] for word in script[1:] if word.startswith("--")]
    found = [word for word in words if word[2:].replace("-", "_") in OF_THE_JOB]
    if found:
        named, goes = ", ".join(dict.fromkeys(found)), "go" if len(set(found)) > 1 else "goes"
        yield (
            f"{named} after {script[0]} {goes} to the script: options of launch come before it"
        )


def _require_data_dir(folder: Path) -> None:
    """Make the data folder if it is missing: pservers would only fail one after the other.

    Raises:
        DataFolderError: if it can't be written to.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataFolderError(path=str(folder), reason=reason) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataFolderError(path=str(folder), reason="this user may not write to it")


def _require_cold_dir(plan: LaunchPlan, environment: Mapping[str, str]) -> None:
    """Pass if pservers with a memory budget know where rows go: each would only end.

    Raises:
        ColdFolderError: if they don't.
    """
    has_servers = any(name.role == "pserver" for name in plan.names)
    given = [name for name in _BUDGETS if environment.get(name, "").strip() not in {"", "0"}]
    has_folder = plan.data_dir or any(environment.get(name) for name in _COLD_FOLDERS)
    if has_servers and given and not has_folder:
        raise ColdFolderError(variable=given[0])


def _require_closed(prepared: PreparedLaunch) -> None:
    """Look whether the Redis to start lets in the job alone.

    Raises:
        OpenRedisError: if it would admit everybody, and that wasn't asked for.
    """
    address = prepared.plan.redis
    if address is None or address.socket or prepared.redis_password or prepared.job.insecure:
        return
    raise OpenRedisError(where=f"{address.host} port {address.port}")


def _given(resolved: Resolved[LaunchSettings]) -> dict[str, str]:
    """Return what the command line says of the job's protection, as its processes read it."""
    given = {}
    for each in fields(SecuritySettings):
        if resolved.origins[each.name] == "argument":
            value = getattr(resolved.value, each.name)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            given[f"PARAMFLEET_{each.name.upper()}"] = text
    return given


def _needs_secret(settings: LaunchSettings, plan: LaunchPlan) -> bool:
    """Tell whether this launcher makes the job's secret: on one machine, where none is given.

    Certificates stand for it, but not with a Redis on a port, whose password comes of it.
    """
    if settings.secret or settings.insecure or settings.several_machines:
        return False
    if not settings.tls_dir and not settings.tls_cert:
        return True
    address = plan.redis
    has_port = address is not None and not address.socket and not address.password
    return has_port and not settings.redis_password


def _as_text(job: JobSettings) -> dict[str, str]:
    """Return secrets as variables themselves: their files may not be there on other nodes."""
    known = {"PARAMFLEET_SECRET": job.secret, "PARAMFLEET_REDIS_PASSWORD": job.redis_password}
    return {name: text for name, text in known.items() if text}


def _on_socket(plan: LaunchPlan, socket: Path) -> LaunchPlan:
    """Return the plan with a Redis of its own on a Unix socket."""
    facts = replace(plan.facts, redis=f"unix://{quote(str(socket))}?db=0")
    return replace(plan, facts=facts, redis=plan.own_redis(str(socket)))


def _socket_of(folder: JobFolder, stack: ExitStack) -> Path:
    """Return where the job's Redis listens: in its folder, if the address isn't too long."""
    socket = folder.redis_socket
    if len(bytes(socket)) <= MAX_SOCKET_BYTES:
        return socket
    short = private_folder()
    stack.callback(shutil.rmtree, short, ignore_errors=True)
    return short / socket.name


def _with_own_logs(plan: LaunchPlan, stack: ExitStack) -> LaunchPlan:
    """Have a folder of logs that no other launch writes to while this one lasts.

    Where one does, it is a folder beside, with the job's name.

    Raises:
        LogDirError: if it can't be made, or a log in it.
    """
    for name in (plan.facts.log_dir, f"{plan.facts.log_dir}-{plan.facts.job}"):
        try:
            Path(name).mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LogDirError(path=name, reason=error.strerror or str(error)) from error
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a file system without locks
            break
        break
    plan = replace(plan, facts=replace(plan.facts, log_dir=name))
    _require_logs(plan)
    return plan


def _require_logs(plan: LaunchPlan) -> None:
    """Look whether the logs that are there can be written to; keep what they have.

    None is made: a process that isn't started has no log.

    Raises:
        LogDirError: if one can't, as where something else has its name and can't be removed.
    """
    for each in (*plan.names, *([REDIS] if plan.redis is not None else [])):
        log = plan.log_of(each)
        if not os.path.lexists(log):
            continue
        try:
            os.close(open_own(log))
        except OSError as error:
            reason = f"{log.name}: {error.strerror or error}"
            raise LogDirError(path=plan.facts.log_dir, reason=reason) from error


def _write_facts(prepared: PreparedLaunch) -> None:
    parts = urlsplit(prepared.plan.facts.redis)
    url = prepared.plan.facts.redis
    if parts.netloc:
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    facts = JobFacts(
        job=prepared.job.job,
        launch=prepared.plan.facts.launch,
        redis=url,
        pid=os.getpid(),
        tls_dir=prepared.job.tls_dir,
        folder=str(Path.cwd()),
    )
    prepared.folder.write_facts(facts)
