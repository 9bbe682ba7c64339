"""``paramfleet certs``: the commands."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from paramfleet_shared.discovery.redis.access_list import (
    READ_ONLY_SINCE,
    REDIS_USERS,
    access_list,
)
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.net.tls import MemberName
from paramfleet_shared.settings.cli import BoundedGroup, echo
from paramfleet_shared.settings.config import JobSettings
from paramfleet_worker.app.commands.arguments import FiniteRange
from paramfleet_worker.process.certificates import (
    AUTHORITY_DAYS,
    DAYS,
    ROLES,
    Authority,
)

__all__ = ["certs"]

FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the certificate authority.",
)
JOB = click.option("--job", default="default", envvar="PARAMFLEET_JOB", help="Name of the job.")
HOST = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name or IP address; can be repeated.",
)
POSITIVE = FiniteRange(min=0, min_open=True)


@click.group(cls=BoundedGroup)
def certs() -> None:
    """Create and show TLS certificates for the processes of a job."""


@certs.command()
@FOLDER
@JOB
@HOST
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(ROLES),
    help="Issue a certificate for this role, too.",
)
@click.option(
    "--days", type=POSITIVE, default=DAYS, help="Validity of the certificates in days."
)
def init(
    folder: Path, job: str, hosts: tuple[str, ...], roles: tuple[str, ...], days: float
) -> None:
    """Create an authority, and with --role certificates. Valid ones are kept."""
    JobSettings(job=job)  # is it a name?

    def run() -> None:
        authority = Authority(folder)
        _say("authority", made=authority.init(job, days=AUTHORITY_DAYS))
        for role in roles:
            name = MemberName(job, role)
            _say(role, made=authority.issue(name, hosts=hosts, days=days))

    _told(run)


@certs.command()
@FOLDER
@JOB
@HOST
@click.option("--role", required=True, type=click.Choice(ROLES))
@click.option("--days", type=POSITIVE, default=DAYS, help="Validity in days.")
def issue(folder: Path, job: str, hosts: tuple[str, ...], role: str, days: float) -> None:
    """Create the certificate of a role, unless it has a valid one."""
    JobSettings(job=job)
    name = MemberName(job, role)
    _told(lambda: _say(role, made=Authority(folder).issue(name, hosts=hosts, days=days)))


@certs.command()
@FOLDER
@click.option("--days", type=POSITIVE, default=DAYS, help="Validity in days.")
def renew(folder: Path, days: float) -> None:
    """Renew all certificates.

    Processes use them for their next connections.
    """

    def run() -> None:
        for role in Authority(folder).renew(days=days):
            _say(role, made=True)

    _told(run)


@certs.command()
@FOLDER
def show(folder: Path) -> None:
    """Show the certificates in a folder; keys are not read."""

    def run() -> None:
        now = datetime.now(UTC)
        for fact in Authority(folder).show():
            hosts = ", ".join(fact.hosts) or "no hosts"
            left = (fact.not_after - now).days
            ends = f"until {fact.not_after.date()} ({left} days)"
            echo(f"{fact.role:12} job {fact.job or '-'}  {ends}  {hosts}")
            echo(f"{'':12} {fact.path}  sha256 {fact.fingerprint}")

    _told(run)


@certs.command("redis-acl")
@FOLDER
@JOB
@click.option(
    "--before-redis-7",
    "is_old",
    is_flag=True,
    help="For Redis 6. There workers and pservers can also write what only the coordinator "
    "should write.",
)
def redis_acl(folder: Path, job: str, *, is_old: bool) -> None:
    """Create passwords and an access list for Redis. Existing passwords are kept.

    Writes redis.acl, for `redis-server --aclfile`, and redis.<user>.password for each of the
    users coordinator, pserver and worker, for PARAMFLEET_REDIS_PASSWORD_FILE.
    """
    JobSettings(job=job)

    def run() -> None:
        digests, version = {}, READ_ONLY_SINCE - is_old
        for user in REDIS_USERS:
            path = folder / f"redis.{user}.password"
            is_new = not path.exists()
            if is_new:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_private(path, secrets.token_urlsafe(32).encode())
            digests[user] = hashlib.sha256(path.read_bytes().strip()).hexdigest()
            _say(f"{user}'s password", made=is_new)
        write_private(folder / "redis.acl", access_list(job, digests, redis=version).encode())

    _told(run)


def _say(what: str, *, made: bool) -> None:
    echo(f"{what}: {'made' if made else 'kept'}", err=True)


def _told(run: Callable[[], object]) -> None:
    """Run a command; an error is printed in one line.

    Raises:
        ClickException: for any error that has a sentence.
    """
    try:
        run()
    except (ContractError, OSError) as error:
        raise click.ClickException(str(error)) from error
