"""Every seeded misconfiguration is found by its name, and nothing is found where nothing is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paramfleet_worker.core.doctor.checks import examine
from paramfleet_worker.core.doctor.facts import (
    CertificateFacts,
    DiskFacts,
    Facts,
    HostFacts,
    MachineFacts,
    MemberFacts,
    PortFacts,
    RedisFacts,
    SettingsFacts,
    TokensFacts,
    TorchFacts,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CERTIFICATE = CertificateFacts(
    path="worker.crt",
    job="default",
    role="worker",
    not_before=NOW - timedelta(days=1),
    not_after=NOW + timedelta(days=300),
    authority_ends=NOW + timedelta(days=3000),
)
HEALTHY = Facts(
    now=NOW,
    settings=SettingsFacts(has_tls=True, has_tokens=True),
    redis=RedisFacts(host="redis", is_loopback=False, speaks_tls=True, coordinator="c:1"),
    members=(MemberFacts(name="worker 1", versions={"paramfleet": "1", "python": "3.11.2"}),),
    own_versions={"paramfleet": "1", "python": "3.11.7", "torch": "2.7"},
    ports=(PortFacts(host="a", port=7000), PortFacts(host="a", port=7001)),
    hosts=(HostFacts(setting="host", host="a", addresses=("10.0.0.1",), all_loopback=False),),
    certificate=CERTIFICATE,
    tokens=TokensFacts(path="tokens", roles=("admin",)),
    torch=TorchFacts(version="2.7.1+cu126", cuda="12.6", sees_device=True),
    machine=MachineFacts(has_device=True, driver="12.8"),
    disk=DiskFacts(path="checkpoints"),
    table_bytes=4 << 30,
)


def redis(**changed: Any) -> dict[str, Any]:
    assert HEALTHY.redis is not None
    return {"redis": replace(HEALTHY.redis, **changed)}


def settings(**changed: Any) -> dict[str, Any]:
    return {"settings": replace(HEALTHY.settings, **changed)}


def machine(**changed: Any) -> dict[str, Any]:
    return {"machine": replace(HEALTHY.machine, **changed)}


def certificate(**changed: Any) -> dict[str, Any]:
    return {"certificate": replace(CERTIFICATE, **changed)}


def fleet(**variables: str) -> dict[str, Any]:
    return settings(fleet=variables)


def member(**versions: str) -> dict[str, Any]:
    return {"members": (MemberFacts(name="pserver 0", versions=versions),)}


FAILURES: dict[str, dict[str, Any]] = {
    "redis-unreachable": {
        **redis(is_reachable=False, reason="refused"),
        **settings(names_redis=True),
    },
    "redis-refused": redis(refusal="WRONGPASS"),
    "redis-acl": redis(denied=("EVAL",)),
    "redis-old": redis(version="5.0.14"),
    "redis-evicts": redis(max_bytes=1 << 30, policy="allkeys-lru"),
    "redis-full": redis(max_bytes=1000, used_bytes=950),
    "clock-skew-redis": redis(skew_s=-60.0),
    "clock-skew-coordinator": redis(coordinator_skew_s=3600.0),
    "coordinator-unreachable": redis(coordinator_answers=False),
    "sizes-differ": {
        **redis(running_sizes={"worker_num": 4}),
        **fleet(PADDLE_TRAINERS_NUM="2"),
    },
    "version-differs": member(paramfleet="2"),
    "port-taken": {"ports": (PortFacts(host="a", port=7000, is_free=False, listener="nc"),)},
    "address-not-ours": {"ports": (PortFacts(host="10.9.9.9", port=0, is_ours=False),)},
    "port-twice": {"ports": (PortFacts(host="a", port=7000),) * 2},
    "host-unresolvable": {
        "hosts": (HostFacts(setting="host", host="nowhere", addresses=(), all_loopback=False),)
    },
    "host-loopback": {
        "hosts": (
            HostFacts(setting="host", host="a", addresses=("127.0.0.1",), all_loopback=True),
        )
    },
    "certificate-missing": certificate(missing=("worker.key",)),
    "certificate-unreadable": certificate(unreadable="nonsense"),
    "certificate-permissions": certificate(readable_by_others=("worker.key",)),
    "certificate-key-mismatch": certificate(has_its_key=False),
    "certificate-wrong-authority": certificate(is_of_authority=False),
    "certificate-expired": certificate(not_after=NOW - timedelta(days=1)),
    "certificate-not-yet-valid": certificate(not_before=NOW + timedelta(hours=1)),
    "certificate-wrong-role": certificate(role="admin"),
    "certificate-wrong-job": certificate(job="clicks"),
    "authority-expires": certificate(authority_ends=NOW + timedelta(days=3)),
    "tokens-unreadable": {"tokens": TokensFacts(path="tokens", error="line 1")},
    "python-unsupported": machine(python="3.10.4"),
    "files-limit": machine(open_files=256),
    "memory-too-small": machine(memory_bytes=4 << 30, is_container_limit=True),
    "torch-missing": {"torch": TorchFacts()},
    "torch-broken": {"torch": TorchFacts(version="2.7", error="libcudnn.so.9")},
    "torch-old": {"torch": TorchFacts(version="1.13.1", cuda="12.1", sees_device=True)},
    "cuda-driver-old": machine(driver="12.2"),
    "cuda-unusable": {"torch": TorchFacts(version="2.7.1", cuda="12.6")},
    "checkpoints-not-writable": {"disk": DiskFacts(path="c", is_writable=False)},
    "disk-full": {"disk": DiskFacts(path="c", free_bytes=2 << 30)},
    "setting-unknown": settings(variables=("PARAMFLEET_JOBB",), known=("PARAMFLEET_JOB",)),
    "setting-invalid": settings(error="lease_ttl_s = -1: must be more than 0"),
    "role-unknown": fleet(TRAINING_ROLE="WORKER"),
    "rank-invalid": fleet(PADDLE_TRAINER_ID="first"),
    "rank-out-of-range": fleet(PADDLE_TRAINER_ID="2", PADDLE_TRAINERS_NUM="2"),
    "endpoint-twice": fleet(PADDLE_PSERVERS_IP_PORT_LIST="a:1,a:1"),
    "endpoint-not-listed": fleet(
        TRAINING_ROLE="PSERVER",
        PADDLE_PSERVERS_IP_PORT_LIST="a:1",
        POD_IP="b",
        PADDLE_PORT="1",
    ),
}
"""By the name of what is found: what is wrong in it."""

WARNINGS: dict[str, dict[str, Any]] = {
    "redis-none": redis(is_reachable=False, reason="refused"),
    "redis-open": redis(asks_for_password=False),
    "redis-rights": redis(dangerous=("CONFIG", "MODULE")),
    "redis-cleartext": redis(speaks_tls=False),
    "redis-forgets": redis(persists=False),
    "redis-slow": redis(round_trip_s=0.4),
    "torch-version-differs": member(torch="2.6"),
    "python-version-differs": member(python="3.12.1"),
    "certificate-expires-soon": certificate(not_after=NOW + timedelta(days=3)),
    "certificate-lacks-host": {
        **settings(role="pserver", host="10.0.0.1"),
        **certificate(role="pserver", hosts=("10.0.0.2",)),
    },
    "tokens-without-tls": settings(has_tls=False),
    "shm-small": machine(shm_bytes=64 << 20),
    "memory-nearly-full": machine(memory_used_bytes=16 << 30),
    "kernels-cold": machine(are_kernels_cold=True),
    "kernels-not-kept": machine(kernels_folder=""),
    "torch-without-cuda": {"torch": TorchFacts(version="2.7.1+cpu")},
}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert examine(HEALTHY) == []


@pytest.mark.parametrize("name", FAILURES)
def test_a_seeded_failure_is_found_by_its_name_and_alone(name: str) -> None:
    (found,) = examine(replace(HEALTHY, **FAILURES[name]))

    assert (found.name, found.severity) == (name, "failure")
    assert found.where
    assert found.problem
    assert found.remedy


@pytest.mark.parametrize("name", WARNINGS)
def test_a_seeded_warning_is_found_by_its_name_and_alone(name: str) -> None:
    (found,) = examine(replace(HEALTHY, **WARNINGS[name]))

    assert (found.name, found.severity) == (name, "warning")
    assert found.where
    assert found.problem
    assert found.remedy


def test_a_file_of_tokens_without_an_admin_s_is_told_where_no_certificate_is() -> None:
    changed = {"tokens": TokensFacts(path="t", roles=("read",)), **settings(has_tls=False)}

    found = examine(replace(HEALTHY, **changed))

    assert [each.name for each in found] == ["tokens-without-admin", "tokens-without-tls"]


def test_failures_come_first() -> None:
    found = examine(replace(HEALTHY, **redis(round_trip_s=0.4, version="5.0")))

    assert [each.severity for each in found] == ["failure", "warning"]
