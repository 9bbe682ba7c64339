"""Checks of Redis, of the clocks, and of the versions that the job's members report."""

from collections.abc import Iterator

from paramfleet_worker.core.doctor.facts import Facts, RedisFacts
from paramfleet_worker.core.doctor.findings import Finding, failure, warning

__all__ = ["check_clocks", "check_coordinator", "check_members", "check_redis"]

OLDEST_REDIS = (6, 0)
"""Access lists and TLS came with it."""

FULL_SHARE = 0.9
SLOW_S = 0.1
"""A heartbeat that takes longer is late when its lease is short."""

SKEW_S = 5.0
"""Clocks may differ by this without harm to dates of certificates and logs."""


def check_redis(facts: Facts) -> Iterator[Finding]:
    """Check that the registry answers, grants access, and keeps what is written to it."""
    redis = facts.redis
    where = facts.settings.redis
    if redis is None:
        return
    if not redis.is_reachable and not facts.settings.names_redis:
        yield warning(
            "redis-none",
            where,
            "no Redis is named, and none answers at the default address",
            "nothing, for a job of one machine: `paramfleet launch` starts its own. Set "
            "PARAMFLEET_REDIS for several machines, or for processes started by hand",
        )
        return
    if not redis.is_reachable:
        yield failure(
            "redis-unreachable",
            where,
            f"Redis doesn't answer: {redis.reason}",
            "start it, open the way to it, or set PARAMFLEET_REDIS to where it is",
        )
        return
    if redis.refusal:
        yield failure(
            "redis-refused",
            where,
            f"Redis doesn't let this user in: {redis.refusal}",
            "set PARAMFLEET_REDIS_USER and PARAMFLEET_REDIS_PASSWORD_FILE",
        )
        return
    yield from _check_rights(redis, where)
    yield from _check_keeping(redis, where)


def _check_rights(redis: RedisFacts, where: str) -> Iterator[Finding]:
    if redis.denied:
        yield failure(
            "redis-acl",
            where,
            f"this user may not run {', '.join(redis.denied)} on the job's keys",
            "give it the rights that `paramfleet certs redis-acl` writes for its role and job",
        )
    may = f", even {', '.join(redis.dangerous)}" if redis.dangerous else ""
    if not redis.asks_for_password:
        yield warning(
            "redis-open",
            where,
            f"Redis accepts commands from everyone who can reach it{may}",
            "give it a password or an access list: `paramfleet certs redis-acl`",
        )
    elif redis.dangerous:
        yield warning(
            "redis-rights",
            where,
            f"the job's user may run {', '.join(redis.dangerous)}: its password gives the "
            "rights of the server's account",
            "keep it to the commands and keys of its job: `paramfleet certs redis-acl`",
        )
    if redis.asks_for_password and not redis.is_loopback and not redis.speaks_tls:
        yield warning(
            "redis-cleartext",
            where,
            "the password crosses the network for all to read",
            "use a rediss:// address, or a network of its own for Redis",
        )


def _check_keeping(redis: RedisFacts, where: str) -> Iterator[Finding]:
    if _version_of(redis.version) < OLDEST_REDIS:
        yield failure(
            "redis-old",
            where,
            f"Redis {redis.version} is older than {'.'.join(map(str, OLDEST_REDIS))}",
            "install a newer one",
        )
    if redis.max_bytes and redis.policy not in {None, "noeviction"}:
        yield failure(
            "redis-evicts",
            where,
            f"when it is full, Redis throws keys away (maxmemory-policy {redis.policy}): "
            "leases and ranks would be lost",
            "set maxmemory-policy noeviction",
        )
    if redis.max_bytes and redis.used_bytes >= FULL_SHARE * redis.max_bytes:
        share = round(100 * redis.used_bytes / redis.max_bytes)
        yield failure(
            "redis-full", where, f"Redis has used {share} % of its maxmemory", "raise maxmemory"
        )
    if redis.persists is False:
        yield warning(
            "redis-forgets",
            where,
            "Redis keeps nothing on disk: after a restart members write their records again, "
            "but how earlier runs ended is lost",
            "set appendonly yes, where that matters",
        )
    if redis.round_trip_s > SLOW_S:
        yield warning(
            "redis-slow",
            where,
            f"an answer takes {redis.round_trip_s * 1000:.0f} ms",
            "bring it nearer, or raise PARAMFLEET_LEASE_TTL_S and PARAMFLEET_LEASE_RENEW_S",
        )


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Check that the clocks agree as far as certificates and logs need it."""
    redis = facts.redis
    if redis is None:
        return
    remedy = "let all machines keep their time by NTP"
    if redis.is_reachable and not redis.refusal and abs(redis.skew_s) > SKEW_S:
        yield failure(
            "clock-skew-redis",
            facts.settings.redis,
            f"the clock of Redis differs from ours by {redis.skew_s:+.1f} s",
            remedy,
        )
    skew_s = redis.coordinator_skew_s
    if skew_s is not None and abs(skew_s) > SKEW_S:
        yield failure(
            "clock-skew-coordinator",
            redis.coordinator,
            f"the coordinator's clock differs from ours by {skew_s:+.1f} s",
            remedy,
        )


def check_coordinator(facts: Facts) -> Iterator[Finding]:
    """Check that the coordinator is where it says, and runs the job this process means."""
    redis = facts.redis
    if redis is None or not redis.coordinator:
        return
    if not redis.coordinator_answers:
        yield failure(
            "coordinator-unreachable",
            redis.coordinator,
            "the job has a coordinator, but nothing answers where it says it is",
            "set --host of the coordinator to an address that others reach, and open its port",
        )
    sizes = redis.running_sizes or {}
    given = facts.settings.fleet.get("PADDLE_TRAINERS_NUM", "")
    running = sizes.get("worker_num")
    if given.isdecimal() and running is not None and int(given) != running:
        yield failure(
            "sizes-differ",
            "PADDLE_TRAINERS_NUM",
            f"it says {given} workers, the running job has {running}",
            "start the coordinator with the same --worker_num, or use another job's name",
        )


def check_members(facts: Facts) -> Iterator[Finding]:
    """Check that all members run the same versions of what they share."""
    for member in facts.members:
        for package in ("paramfleet", "numpy", "torch", "python"):
            theirs, ours = member.versions.get(package), facts.own_versions.get(package)
            if not theirs or not ours:
                continue
            if package == "python":
                theirs, ours = ".".join(theirs.split(".")[:2]), ".".join(ours.split(".")[:2])
            if theirs == ours:
                continue
            is_ours = package == "paramfleet"
            yield (failure if is_ours else warning)(
                "version-differs" if is_ours else f"{package}-version-differs",
                member.name,
                f"it runs {package} {theirs}, this machine {ours}",
                f"install the same {package} everywhere",
            )


def _version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
