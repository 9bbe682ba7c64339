"""What of a job is open, and to whom: the checks of ``paramfleet doctor --security``.

A failure gives access to unauthorized users: to read, change or end the job, or to run
code as its owner. A warning is about data that others can read on the network
or in this machine's files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paramfleet_worker.core.doctor.findings import Finding, failure, warning

__all__ = [
    "ListenerFacts",
    "OpenRedisFacts",
    "PathFacts",
    "SecurityFacts",
    "examine_security",
]

PathKind = Literal[
    "job folder", "secret", "token", "tokens", "key", "checkpoints", "log", "kernels"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PathFacts:
    """A file or folder of the job, as others on this machine see it."""

    kind: PathKind
    path: str
    mode: int = 0o600
    readable_by_others: bool = False
    writable_by_others: bool = False
    owner: str = ""
    """Whose it is, if neither ours nor root's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerFacts:
    """An address that a process of the job is asked at."""

    use: Literal["admin", "data"]
    """Pages and commands for people; or calls between the job's processes."""

    process: str
    address: str
    """The address it listens on, if that is known; else the one that others call."""

    is_loopback: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRedisFacts:
    """What the registry permits to unauthenticated clients and to the job."""

    address: str
    """Without its password."""

    is_private: bool
    """Whether only this user reaches it: a Unix socket in a folder of theirs."""

    is_loopback: bool
    speaks_tls: bool
    lets_strangers_in: bool = False
    dangerous: tuple[str, ...] = ()
    """Commands that every admitted client may run, and by which it can run code there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityFacts:
    """One job, running or only configured."""

    job: str
    where: str
    """Where its settings were read."""

    has_secret: bool = False
    has_tls: bool = False
    has_tokens: bool = False
    is_insecure: bool = False
    has_open_reading: bool = False
    redis: OpenRedisFacts | None = None
    listeners: tuple[ListenerFacts, ...] = ()
    paths: tuple[PathFacts, ...] = ()
    unseen: tuple[str, ...] = ()
    """What couldn't be looked at, in sentences."""


def examine_security(facts: SecurityFacts) -> list[Finding]:
    """Return what is open, failures first."""
    checks = (_check_proof, _check_redis, _check_listeners, _check_paths, _check_unseen)
    found = [finding for check in checks for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.severity != "failure")


def _check_proof(facts: SecurityFacts) -> Iterator[Finding]:
    if facts.is_insecure:
        yield failure(
            "insecure",
            facts.where,
            f"job {facts.job} is started with `insecure`: everyone who can reach its ports can "
            "read, change and end it",
            "give it a secret (PARAMFLEET_SECRET_FILE) or certificates, and leave it out",
        )
    elif not facts.has_secret and not facts.has_tls:
        yield failure(
            "no-proof",
            facts.where,
            f"job {facts.job} has neither a secret nor certificates: its processes can't be "
            "distinguished from others",
            "start it by `paramfleet launch`, set PARAMFLEET_SECRET_FILE for each process "
            "(`paramfleet secret FILE`), or PARAMFLEET_TLS_DIR (`paramfleet certs init`)",
        )
    if facts.has_open_reading:
        yield warning(
            "reading-open",
            facts.where,
            "everyone who can reach an admin address can read status, metrics and settings",
            "set PARAMFLEET_ADMIN_OPEN_READING=false, and give programs a token: `paramfleet "
            "tokens new --role read`",
        )


def _check_redis(facts: SecurityFacts) -> Iterator[Finding]:
    redis = facts.redis
    if redis is None or redis.is_private:
        return
    who = "every user of this machine" if redis.is_loopback else "everyone who can reach it"
    if redis.lets_strangers_in:
        code = f", among them {' and '.join(redis.dangerous)}" if redis.dangerous else ""
        yield failure(
            "redis-open",
            redis.address,
            f"Redis takes commands from {who} without a password{code}",
            "give it a password or an access list (`paramfleet certs redis-acl`), or let "
            "`paramfleet launch` start one",
        )
    elif redis.dangerous:
        yield warning(
            "redis-dangerous",
            redis.address,
            f"the job's own user of Redis may run {' and '.join(redis.dangerous)}, by which a "
            "process of the job runs code where Redis runs",
            "give it an access list: `paramfleet certs redis-acl`",
        )
    if not redis.is_loopback and not redis.speaks_tls:
        yield warning(
            "redis-cleartext",
            redis.address,
            "what the job says to Redis, passwords included, crosses the network in clear",
            "use a rediss:// address, or a network of its own for Redis",
        )


def _check_listeners(facts: SecurityFacts) -> Iterator[Finding]:
    if facts.has_tls:
        return
    problems = {
        "admin": "tokens and what the pages show cross the network in clear",
        "data": "gradients and rows cross the network in clear: the secret proves who calls, "
        "and encrypts nothing",
    }
    for listener in facts.listeners:
        if not listener.is_loopback:
            yield warning(
                f"{listener.use}-cleartext",
                f"{listener.process} at {listener.address}",
                f"it is reached from beyond this machine without TLS: {problems[listener.use]}",
                "make certificates with `paramfleet certs`, and set PARAMFLEET_TLS_DIR",
            )


def _check_paths(facts: SecurityFacts) -> Iterator[Finding]:
    for path in facts.paths:
        where = f"{path.path} (mode {path.mode:04o})"
        if path.owner:
            yield failure(
                f"{_name_of(path)}-foreign",
                where,
                f"it belongs to {path.owner}, who may replace what is in it",
                "name another in the settings, or have it given to the job's user",
            )
        elif path.writable_by_others and path.kind in _IF_WRITABLE:
            yield failure(f"{_name_of(path)}-writable", where, _IF_WRITABLE[path.kind], _CHMOD)
        elif path.readable_by_others and path.kind in _IF_READABLE:
            yield failure(f"{_name_of(path)}-readable", where, _IF_READABLE[path.kind], _CHMOD)
        elif path.readable_by_others and path.kind in {"log", "tokens"}:
            what = {
                "log": "others on this machine read what the job's processes say",
                "tokens": "others on this machine read whose tokens there are, if no token",
            }[path.kind]
            yield warning(f"{_name_of(path)}-readable", where, what, _CHMOD)


def _check_unseen(facts: SecurityFacts) -> Iterator[Finding]:
    for sentence in facts.unseen:
        yield warning(
            "not-looked-at",
            facts.where,
            sentence,
            "ask as the job's user, on the machine that runs it, with --job",
        )


def _name_of(path: PathFacts) -> str:
    return path.kind.replace(" ", "-")


_CHMOD = "chmod go-rwx"

_IF_WRITABLE = {
    "job folder": "others may put files into it, and so control the job",
    "secret": "others may replace it",
    "token": "others may replace it",
    "tokens": "others may add a token of their own, and control the job",
    "key": "others may replace it",
    "checkpoints": "others may replace what is loaded from it",
    "log": "others may replace or remove what the job's processes said",
    "kernels": "others may put compiled code there, which the job's processes run",
}
"""By kind: what follows."""

_IF_READABLE = {
    "job folder": "others look into it",
    "secret": "others on this machine may join and control the job",
    "token": "others on this machine may control the job",
    "key": "others on this machine may pass for this process",
}
"""By kind: what follows, where reading is enough."""
