"""What ``paramfleet doctor --security`` looks at: a running job, or the settings of one."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.job_folder import JobFolder
from paramfleet_shared.net.tls import files_of
from paramfleet_shared.settings.config import JobSettings, without_password
from paramfleet_shared.tables.kernels.basics.folders import UnsafeKernelsError
from paramfleet_shared.tables.kernels.basics.readiness import kernel_folders
from paramfleet_worker.app.finding import Found, find_job
from paramfleet_worker.app.operating import operator_of, reading
from paramfleet_worker.core.doctor.security import (
    ListenerFacts,
    PathFacts,
    PathKind,
    SecurityFacts,
)
from paramfleet_worker.process.probes.security import (
    look_at_listener,
    look_at_path,
    look_at_place,
    look_at_redis,
)

__all__ = ["Look", "gather_security"]

_ASKED = (
    "insecure", "admin_open_reading", "tokens_file", "tls_dir", "tls_ca", "tls_cert", "tls_key",
)  # fmt: skip
"""Settings that a running coordinator is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is asked for."""

    role: str
    job: str | None = None
    logs: Path | None = None
    checkpoints: Path | None = None


def gather_security(
    look: Look, settings: JobSettings, environment: Mapping[str, str]
) -> SecurityFacts:
    """Look at the job that is meant: the one that runs, else what the settings would start.

    Args:
        look: What to look at.
        settings: What a process of the role reads here.
        environment: This process's.

    Raises:
        SettingError: if a setting is wrong.
        SeveralJobsError: if several jobs run here and none is named.
    """
    found = find_job({"job": look.job}, environment)
    if found.folder is not None or look.job is not None:
        return _of_running(found, look)
    where = f"the settings of a {look.role} of this machine"
    facts = SecurityFacts(
        job=settings.job,
        where=where,
        has_secret=bool(settings.secret),
        has_tls=files_of(settings, look.role) is not None,
        is_insecure=settings.insecure,
        has_open_reading=settings.admin_open_reading,
        listeners=tuple(_to_listen(settings)),
        paths=tuple(_paths_of(settings, look, Path(), environment)),
    )
    return _with_redis(facts, settings)


def _of_running(found: Found, look: Look) -> SecurityFacts:
    """Look at a job that runs, and ask its coordinator how it is set."""
    settings, folder = found.settings, found.folder
    facts = SecurityFacts(job=settings.job, where=f"the running job {settings.job}")
    said: dict[str, Any] = {}
    try:
        operator = operator_of(found)
        with reading(operator.url):
            said = {name: fact["value"] for name, fact in operator.page("config").items()}
            listeners = _listeners_of(operator.url, operator.page("status")["members"])
            facts = replace(facts, listeners=tuple(listeners))
    except (FleetError, OSError) as error:
        unseen = f"its coordinator doesn't say how it is set: {error}"
        facts = replace(facts, unseen=(unseen,))
    settings = replace(
        settings,
        **{name: said[name] for name in _ASKED if said.get(name)},
    )
    at = Path() if folder is None else _launched_at(folder)
    checkpoints = look.checkpoints or Path(str(said.get("checkpoint_dir") or "checkpoints"))
    paths = [*_paths_of(settings, replace(look, checkpoints=checkpoints), at, {})]
    if folder is not None:
        own: list[tuple[PathKind, Path]] = [
            ("job folder", folder.path),
            ("secret", folder.secret_file),
            ("token", folder.admin_token_file),
        ]
        paths += filter(None, (look_at_path(*each) for each in own))
    facts = replace(
        facts,
        has_secret=bool(said.get("secret") or settings.secret),
        has_tls=files_of(settings, "coordinator") is not None,
        is_insecure=settings.insecure,
        has_open_reading=settings.admin_open_reading,
        paths=tuple(paths),
    )
    return _with_redis(facts, settings)


def _with_redis(facts: SecurityFacts, settings: JobSettings) -> SecurityFacts:
    redis = asyncio.run(look_at_redis(settings))
    if redis is None:
        unseen = f"Redis at {without_password(settings.redis)} lets neither strangers nor us in"
        return replace(facts, unseen=(*facts.unseen, unseen))
    return replace(facts, redis=redis)


def _listeners_of(url: str, members: list[dict[str, Any]]) -> Iterator[ListenerFacts]:
    """Yield where a job's processes are asked, as far as they say so."""
    places = [("admin", "coordinator", url.rpartition("://")[2])]
    for member in members:
        process = f"{member['role']} {member['index']}"
        places += [("admin", process, str(member.get("admin", "")))]
        places += [("data", process, str(member.get("endpoint", "")))]
    yield from filter(None, (look_at_listener(*place) for place in places))


def _to_listen(settings: JobSettings) -> Iterator[ListenerFacts]:
    """Yield where a process with these settings would listen."""
    host = getattr(settings, "bind", "") or settings.host
    for use, name in (("admin", "admin_port"), ("data", "port")):
        port = getattr(settings, name, None)
        if port is not None:
            yield look_at_place(use, host, port)


def _paths_of(
    settings: JobSettings, look: Look, at: Path, environment: Mapping[str, str]
) -> Iterator[PathFacts]:
    """Yield the files and folders of a job that are there.

    Args:
        settings: The job's.
        look: What was asked for.
        at: Where relative paths begin.
        environment: Names the file of the secret.
    """
    files = files_of(settings, look.role)
    try:
        kernels = kernel_folders()
    except UnsafeKernelsError as error:
        kernels = (Path(error.path), Path(error.path).parent)
    places: list[tuple[PathKind, Path]] = [
        *(("kernels", each) for each in kernels),
        ("checkpoints", at / (look.checkpoints or "checkpoints")),
    ]
    tokens = filter(None, settings.tokens_file.split(os.pathsep))
    places.extend(("tokens", at / each) for each in tokens)
    if files is not None:
        places.append(("key", at / files.key))
    if name := environment.get("PARAMFLEET_SECRET_FILE"):
        places.append(("secret", at / name))
    yield from filter(None, (look_at_path(*place) for place in places))
    logs = at / (look.logs or "log")
    seen = [look_at_path("log", path) for path in (logs, *sorted(logs.glob("*log.*")))]
    open_ones = [each for each in seen if each and (each.readable_by_others or each.owner)]
    yield from open_ones[-1:]  # one says it for all


def _launched_at(folder: JobFolder) -> Path:
    """Return the working folder of a job's launcher."""
    facts = folder.facts()
    with contextlib.suppress(OSError):
        if facts is not None:
            return Path(f"/proc/{facts.pid}/cwd").readlink()
    return Path()
