"""``paramfleet doctor``: gathers the facts, and says what follows from them."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from paramfleet.config.settings import WorkerSettings
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.rpc.endpoint import split_endpoint
from paramfleet_shared.net.tls import CertificateFilesError, files_of, tls_of
from paramfleet_shared.settings.cli import BoundedCommand, echo
from paramfleet_shared.settings.config import (
    JobSettings,
    Resolved,
    SettingError,
    options_of,
    read_environment,
    resolve,
    without_password,
)
from paramfleet_shared.values.versions import versions
from paramfleet_worker.app.commands.arguments import FiniteRange
from paramfleet_worker.app.doctor.defaults import lines_of, table_defaults
from paramfleet_worker.app.doctor.security import Look, gather_security
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.doctor.checks import examine
from paramfleet_worker.core.doctor.facts import Facts, PortFacts, SettingsFacts, TokensFacts
from paramfleet_worker.core.doctor.findings import Finding
from paramfleet_worker.core.doctor.security import examine_security
from paramfleet_worker.process.probes.machine import (
    look_at_disk,
    look_at_machine,
    look_at_torch,
)
from paramfleet_worker.process.probes.network import look_at_host, look_at_port
from paramfleet_worker.process.probes.registry import ask_registry
from paramfleet_worker.process.probes.secrets import look_at_certificate, look_at_tokens

__all__ = ["Wanted", "doctor", "gather"]

SECTIONS: Mapping[str, type] = {
    "coordinator": CoordinatorSettings,
    "pserver": PServerSettings,
    "worker": WorkerSettings,
    "launch": LaunchSettings,
}
OTHERS = tuple(
    f"PARAMFLEET_{name}"
    for name in (
        "ADMIN_TOKEN", "ADMIN_TOKEN_FILE", "ADMIN_URL", "CONFIG", "COORDINATOR", "DATA",
        "LOG_DIR",
    )
)  # fmt: skip
"""Variables that no settings class has."""

FLEET = (
    "TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_PSERVERS_IP_PORT_LIST",
    "POD_IP", "PADDLE_PORT",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the doctor is asked to look at."""

    role: str = "worker"
    config: Path | None = None
    listen: tuple[str, ...] = ()
    checkpoints: Path | None = None
    table_gib: float = 0.0


def gather(wanted: Wanted, environment: Mapping[str, str]) -> Facts:
    """Look at this machine and at the job.

    Args:
        wanted: What to look at.
        environment: This process's.
    """
    settings, facts = _read_settings(wanted, environment)
    gathered = Facts(
        now=datetime.now(UTC),
        settings=facts,
        own_versions=versions(),
        machine=look_at_machine(),
        torch=look_at_torch() if wanted.role == "worker" else None,
        disk=None if wanted.checkpoints is None else look_at_disk(wanted.checkpoints),
        table_bytes=round(wanted.table_gib * (1 << 30)),
    )
    if settings is None:
        return gathered
    try:
        tls = tls_of(settings, wanted.role)
    except CertificateFilesError:  # the look at the files says why
        tls = None
    redis, members = asyncio.run(ask_registry(settings, tls, role=wanted.role))
    hosts = [look_at_host("host", settings.host)]
    if redis.host:
        hosts.append(look_at_host("redis", redis.host))
    files = files_of(settings, wanted.role)
    return replace(
        gathered,
        redis=redis,
        members=members,
        hosts=tuple(hosts),
        ports=_look_at_ports(settings, wanted),
        certificate=None if files is None else look_at_certificate(files),
        tokens=_look_at_tokens(settings),
    )


def _look_at_tokens(settings: JobSettings) -> TokensFacts | None:
    """Look at the files of tokens; of several, at the first that can't be used, or else one."""
    names = [name for name in settings.tokens_file.split(os.pathsep) if name]
    found = [look_at_tokens(Path(name)) for name in names]
    return next((each for each in found if each.error), found[0] if found else None)


def _read_settings(
    wanted: Wanted, environment: Mapping[str, str]
) -> tuple[JobSettings | None, SettingsFacts]:
    facts = SettingsFacts(
        role=wanted.role,
        variables=tuple(sorted(n for n in environment if n.startswith("PARAMFLEET_"))),
        known=_known(),
        fleet={name: environment[name] for name in FLEET if environment.get(name)},
    )
    cls = SECTIONS.get(wanted.role, JobSettings)
    read = {n: v for n, v in environment.items() if n in facts.known}
    section = wanted.role if wanted.role in SECTIONS else ""
    try:
        resolved: Resolved[Any] = resolve(
            cls, section=section, arguments={}, environment=read, file=wanted.config
        )
    except ContractError as error:
        return None, replace(facts, error=str(error))
    settings = resolved.value
    assert isinstance(settings, JobSettings), "those of the roles are"
    return settings, replace(
        facts,
        job=settings.job,
        host=settings.host,
        redis=without_password(settings.redis),
        names_redis=resolved.origins["redis"] != "default",
        has_tls=files_of(settings, wanted.role) is not None,
        has_tokens=bool(settings.tokens_file),
    )


def _known() -> tuple[str, ...]:
    shared = options_of(JobSettings)
    names = [f"PARAMFLEET_{option.name.upper()}" for option in shared]
    names += [f"PARAMFLEET_{option.name.upper()}_FILE" for option in shared if option.secret]
    in_shared = {option.name for option in shared}
    for section, cls in SECTIONS.items():
        names += [
            f"PARAMFLEET_{section.upper()}__{option.name.upper()}"
            for option in options_of(cls)
            if section == "launch" or option.name not in in_shared
        ]
    return (*names, *OTHERS)


def _look_at_ports(settings: JobSettings, wanted: Wanted) -> tuple[PortFacts, ...]:
    bind = getattr(settings, "bind", "") or settings.host
    ports = [getattr(settings, name, None) for name in ("port", "admin_port")]
    places = [(bind, port) for port in ports if port is not None]
    places += [split_endpoint(each) for each in wanted.listen]
    return tuple(look_at_port(host, port) for host, port in places)


@click.command(cls=BoundedCommand)
@click.option(
    "--role",
    type=click.Choice(("coordinator", "pserver", "worker", "admin")),
    default="worker",
    help="Role that this machine will have.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="PARAMFLEET_CONFIG",
    help="TOML file with settings.",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help="Check that this address is free.",
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    help="Check that checkpoints can be saved in this folder.",
)
@click.option(
    "--table-gib",
    type=FiniteRange(min=0),
    default=0.0,
    help="Memory in GiB that you expect the tables to need on this machine.",
)
@click.option("--security", is_flag=True, help="Show what of a job is open, and to whom.")
@click.option("--job", help="With --security: name of the job, as of `paramfleet status`.")
@click.option(
    "--logs",
    type=click.Path(path_type=Path),
    help="With --security: folder of the log files; by default log, where the job was "
    "launched.",
)
@click.option(
    "--defaults",
    is_flag=True,
    help="Only print the defaults of accessors, entries and eviction.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@click.pass_context
def doctor(
    context: click.Context,
    /,
    *,
    as_json: bool,
    security: bool,
    defaults: bool,
    job: str | None,
    logs: Path | None,
    **options: Any,
) -> None:
    """Check that jobs can run on this machine; nothing is changed.

    Reads the same settings as the processes of a job. The exit code is 1 if a check failed;
    warnings don't count.

    Raises:
        UsageError: if an option can't be what was meant.
    """
    if defaults:
        _say_defaults(as_json=as_json)
        return
    wanted = Wanted(**options)
    try:
        if security:
            findings = _examine_security(wanted, job, logs)
        else:
            findings = examine(gather(wanted, read_environment()))
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    num_failures = sum(finding.severity == "failure" for finding in findings)
    if as_json:
        found = [asdict(finding) for finding in findings]
        echo(json.dumps({"ok": not num_failures, "findings": found}))
    else:
        for finding in findings:
            _say(finding)
        num_warnings = len(findings) - num_failures
        echo(f"{num_failures} failures, {num_warnings} warnings")
    context.exit(1 if num_failures else 0)


def _say_defaults(*, as_json: bool) -> None:
    """Say what tables have where nothing is set."""
    found = table_defaults()
    if not as_json:
        echo("\n".join(lines_of(found)))
        return
    plain = {
        title: {name: each._asdict() for name, each in options.items()}
        for title, options in found.items()
    }
    echo(json.dumps({"defaults": plain}))


def _examine_security(wanted: Wanted, job: str | None, logs: Path | None) -> list[Finding]:
    """Return what of a job is open.

    Raises:
        SettingError: if its settings can't be read.
        SeveralJobsError: if several jobs run here and none is named.
    """
    environment = read_environment()
    settings, facts = _read_settings(wanted, environment)
    if settings is None:
        raise SettingError(name="settings", value="?", rule=f"readable ({facts.error})")
    look = Look(role=wanted.role, job=job, logs=logs, checkpoints=wanted.checkpoints)
    return examine_security(gather_security(look, settings, environment))


def _say(finding: Finding) -> None:
    echo(f"{finding.severity.upper()} {finding.name}: {finding.where}")
    echo(f"    {finding.problem}")
    echo(f"    -> {finding.remedy}")
