"""Each way in which a job may be open is found by its name, and nothing where it is closed."""

from dataclasses import replace
from typing import Any

import pytest

from paramfleet_worker.core.doctor.security import (
    ListenerFacts,
    OpenRedisFacts,
    PathFacts,
    SecurityFacts,
    examine_security,
)

LOOPBACK = ListenerFacts(
    use="admin", process="coordinator", address="127.0.0.1:7101", is_loopback=True
)
DATA = replace(LOOPBACK, use="data", process="pserver 0", address="127.0.0.1:7000")
REDIS = OpenRedisFacts(
    address="redis://127.0.0.1:6379/0", is_private=False, is_loopback=True, speaks_tls=False
)
KINDS: tuple[Any, ...] = (
    "job folder", "secret", "token", "tokens", "key", "checkpoints", "log", "kernels",
)  # fmt: skip
CLOSED = SecurityFacts(
    job="flights",
    where="the running job flights",
    has_secret=True,
    redis=REDIS,
    listeners=(LOOPBACK, DATA),
    paths=tuple(PathFacts(kind=kind, path=f"/{kind}") for kind in KINDS),
)


def listening(listener: ListenerFacts, **changed: Any) -> dict[str, Any]:
    return {"listeners": (replace(listener, is_loopback=False, **changed),)}


def redis(**changed: Any) -> dict[str, Any]:
    return {"redis": replace(REDIS, **changed)}


def path(kind: Any, **changed: Any) -> dict[str, Any]:
    return {"paths": (PathFacts(kind=kind, path=f"/{kind}", mode=0o666, **changed),)}


FAILURES: dict[str, dict[str, Any]] = {
    "no-proof": {"has_secret": False},
    "insecure": {"is_insecure": True},
    "redis-open": redis(lets_strangers_in=True, dangerous=("CONFIG", "MODULE")),
    "job-folder-readable": path("job folder", readable_by_others=True),
    "secret-readable": path("secret", readable_by_others=True),
    "token-readable": path("token", readable_by_others=True),
    "key-readable": path("key", readable_by_others=True),
    "tokens-writable": path("tokens", readable_by_others=True, writable_by_others=True),
    "checkpoints-writable": path("checkpoints", writable_by_others=True),
    "log-writable": path("log", writable_by_others=True),
    "kernels-writable": path("kernels", writable_by_others=True),
    "kernels-foreign": path("kernels", owner="mallory"),
}
WARNINGS: dict[str, dict[str, Any]] = {
    "reading-open": {"has_open_reading": True},
    "redis-dangerous": redis(dangerous=("CONFIG",)),
    "redis-cleartext": redis(is_loopback=False),
    "admin-cleartext": listening(LOOPBACK),
    "data-cleartext": listening(DATA),
    "tokens-readable": path("tokens", readable_by_others=True),
    "log-readable": path("log", readable_by_others=True),
    "not-looked-at": {"unseen": ("its coordinator doesn't answer",)},
}


def test_of_a_closed_job_nothing_is_found() -> None:
    assert examine_security(CLOSED) == []
    with_tls = replace(CLOSED, has_secret=False, has_tls=True, **listening(DATA))
    assert examine_security(with_tls) == []
    private = redis(is_private=True, lets_strangers_in=True, dangerous=("CONFIG",))
    assert examine_security(replace(CLOSED, **private)) == []


def test_what_others_may_read_and_nobody_minds_is_not_found() -> None:
    for kind in ("checkpoints", "kernels"):
        assert examine_security(replace(CLOSED, **path(kind, readable_by_others=True))) == []


@pytest.mark.parametrize(
    ("name", "severity"),
    [*((name, "failure") for name in FAILURES), *((name, "warning") for name in WARNINGS)],
)
def test_what_is_open_is_found_by_its_name_and_alone(name: str, severity: str) -> None:
    (found,) = examine_security(replace(CLOSED, **{**FAILURES, **WARNINGS}[name]))

    assert (found.name, found.severity) == (name, severity)
    assert found.where
    assert found.problem
    assert found.remedy


def test_a_secret_on_a_network_is_said_to_prove_and_not_to_encrypt() -> None:
    (found,) = examine_security(replace(CLOSED, **listening(DATA)))

    assert "the secret proves who calls, and encrypts nothing" in found.problem


def test_failures_come_first() -> None:
    found = examine_security(replace(CLOSED, has_open_reading=True, has_secret=False))

    assert [each.severity for each in found] == ["failure", "warning"]
