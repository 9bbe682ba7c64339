"""``paramfleet doctor`` on real files, sockets and Redis servers: misconfigurations by name."""

import asyncio
import contextlib
import gc
import json
import os
import re
import shutil
import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import JobRecord, JobSizes, Member
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.commands.certs import certs
from paramfleet_worker.app.commands.tokens import tokens

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    for name in list(os.environ):  # noqa: TID251 -- what the command reads
        if name.startswith(("PARAMFLEET_", "PADDLE_", "TRAINING_ROLE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PARAMFLEET_REDIS", redis_url)


def run(*words: str, role: str = "pserver") -> tuple[int, set[str]]:
    """Return the exit code and what was found."""
    result = CliRunner().invoke(main, ["doctor", "--json", "--role", role, *words])
    assert result.exit_code in {0, 1}, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    assert said["ok"] == (result.exit_code == 0)
    return result.exit_code, {finding["name"] for finding in said["findings"]}


def make_certificates(folder: Path, *, over: Path | None = None) -> None:
    """Make certificates; ``over`` another folder's authority, if one is given."""
    words = ["init", "--dir", str(folder), "--job", "default", "--host", "127.0.0.1"]
    for role in ("pserver", "worker"):
        words += ["--role", role]
    assert CliRunner().invoke(certs, words).exit_code == 0
    if over is not None:
        shutil.copy(folder / "ca.crt", over / "ca.crt")


@contextlib.contextmanager
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_a_healthy_machine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path / "tls")
    monkeypatch.setenv("PARAMFLEET_TLS_DIR", str(tmp_path / "tls"))

    code, found = run("--checkpoints", str(tmp_path))

    warnings = {"kernels-cold", "shm-small", "memory-nearly-full", "redis-forgets", "disk-full"}
    assert found <= warnings, "only what depends on the machine"
    assert code == (1 if "disk-full" in found else 0)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("setting-unknown", {"PARAMFLEET_LEASE_TTL": "6"}),
        ("setting-unknown", {"PARAMFLEET_PSERVER__PORTT": "7000"}),
        ("setting-invalid", {"PARAMFLEET_LEASE_TTL_S": "-1"}),
        ("setting-invalid", {"PARAMFLEET_REDIS_PASSWORD_FILE": "/nonexistent"}),
        ("rank-out-of-range", {"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "2"}),
        ("role-unknown", {"TRAINING_ROLE": "WORKER"}),
        ("redis-unreachable", {"PARAMFLEET_REDIS": "redis://127.0.0.1:1/0"}),
        ("host-unresolvable", {"PARAMFLEET_HOST": "no-such-host.invalid"}),
        ("address-not-ours", {"PARAMFLEET_PSERVER__BIND": "192.0.2.1"}),
        ("certificate-missing", {"PARAMFLEET_TLS_DIR": "/nonexistent"}),
        ("tokens-unreadable", {"PARAMFLEET_TOKENS_FILE": "/nonexistent"}),
    ],
)
def test_a_wrong_setting_is_found_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str]
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)

    code, found = run()

    assert code == 1
    assert name in found


def test_a_redis_that_nobody_named_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 6379)) == 0:
            pytest.skip("a Redis is at the default address")
    monkeypatch.delenv("PARAMFLEET_REDIS")

    said = CliRunner().invoke(main, ["doctor", "--role", "admin"])

    assert said.exit_code == 0, said.output
    assert "WARNING redis-none: redis://127.0.0.1:6379/0" in said.output
    assert "`paramfleet launch` starts its own" in said.output


def test_what_the_commands_read_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        f"PARAMFLEET_{name}"
        for path in (Path(__file__).parents[3] / "services").rglob("*.py")
        for name in re.findall(r'envvar="PARAMFLEET_(\w+)"', path.read_text(encoding="utf-8"))
    }
    for variable in variables - {"PARAMFLEET_CONFIG", "PARAMFLEET_TOKENS_FILE"}:
        monkeypatch.setenv(variable, "x")

    assert "PARAMFLEET_ADMIN_TOKEN" in variables
    assert "setting-unknown" not in run()[1]


def test_a_port_that_is_taken_is_found() -> None:
    with listener() as port:
        code, found = run("--listen", f"127.0.0.1:{port}")

    assert code == 1
    assert "port-taken" in found


def test_two_equal_ports_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as port:
        pass  # free again
    monkeypatch.setenv("PARAMFLEET_PSERVER__PORT", str(port))
    monkeypatch.setenv("PARAMFLEET_PSERVER__ADMIN_PORT", str(port))

    assert "port-twice" in run()[1]


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (lambda folder: (folder / "pserver.key").chmod(0o644), "certificate-permissions"),
        (
            lambda folder: shutil.copy(folder / "worker.key", folder / "pserver.key"),
            "certificate-key-mismatch",
        ),
        (lambda folder: (folder / "pserver.crt").write_text("x"), "certificate-unreadable"),
        (
            lambda folder: [
                shutil.copy(folder / f"worker.{kind}", folder / f"pserver.{kind}")
                for kind in ("crt", "key")
            ],
            "certificate-wrong-role",
        ),
        (
            lambda folder: make_certificates(folder / "other", over=folder),
            "certificate-wrong-authority",
        ),
    ],
)
def test_a_harmed_certificate_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any, name: str
) -> None:
    make_certificates(tmp_path / "tls")
    monkeypatch.setenv("PARAMFLEET_TLS_DIR", str(tmp_path / "tls"))
    harm(tmp_path / "tls")

    code, found = run()

    assert code == 1
    assert name in found


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"age_days": 60}, "certificate-expired"),
        ({"age_days": -2}, "certificate-not-yet-valid"),
        ({"age_days": 20}, "certificate-expires-soon"),
        ({"job": "clicks"}, "certificate-wrong-job"),
    ],
)
def test_a_certificate_of_another_time_or_job_is_found(
    certificates: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], name: str
) -> None:
    files = certificates.issue("pserver", **{"job": "default", **options})
    monkeypatch.setenv("PARAMFLEET_TLS_DIR", str(files.ca.parent))

    assert name in run()[1]


def test_tokens_without_tls_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    CliRunner().invoke(tokens, ["new", "--file", str(path), "--role", "read"])
    monkeypatch.setenv("PARAMFLEET_TOKENS_FILE", str(path))

    code, found = run()

    assert {"tokens-without-tls", "tokens-without-admin"} <= found
    assert code == 0, "warnings alone"


def test_a_folder_of_checkpoints_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert "checkpoints-not-writable" in run("--checkpoints", str(tmp_path / "none"))[1]


def test_tables_that_do_not_fit_are_found() -> None:
    assert "memory-too-small" in run("--table-gib", "100000")[1]


async def command(url: str, *words: str) -> None:
    store = RedisStore(url, clock=SystemClock(), timeout_s=5.0)
    await store.command(*words)
    await store.close()


async def test_a_redis_that_evicts_and_is_full_is_found(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_redis.start()
    await command(own_redis.admin_url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await command(own_redis.admin_url, "CONFIG", "SET", "maxmemory", "1200kb")
    monkeypatch.setenv("PARAMFLEET_REDIS", own_redis.admin_url)

    found = await in_thread()

    assert {"redis-evicts", "redis-forgets"} <= found


async def test_a_wrong_password_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="127.0.0.1", password="right")
    await redis.start()
    monkeypatch.setenv("PARAMFLEET_REDIS", redis.url.replace("right", "wrong"))
    try:
        found = await in_thread()
    finally:
        redis.stop()

    assert "redis-refused" in found


async def test_a_user_without_the_rights_is_found(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_redis.start()
    words = ("ACL", "SETUSER", "weak", "on", ">secret", "~paramfleet:*", "+@all", "-evalsha")
    await command(own_redis.admin_url, *words)
    monkeypatch.setenv("PARAMFLEET_REDIS", own_redis.url)
    monkeypatch.setenv("PARAMFLEET_REDIS_USER", "weak")
    monkeypatch.setenv("PARAMFLEET_REDIS_PASSWORD", "secret")

    assert "redis-acl" in await in_thread()


async def test_a_redis_on_loopback_that_asks_for_no_password_is_found(
    plain_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMFLEET_REDIS", (await plain_redis()).place)

    assert "redis-open" in await in_thread()


async def in_thread() -> set[str]:
    """Run the doctor, which has a loop of its own, beside this test's."""
    return (await asyncio.to_thread(run))[1]


async def open_job(redis_url: str, *, admin: str) -> None:
    """Leave a job in Redis whose coordinator is at ``admin``, and one member."""
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=5.0)
    where = CoordinatorRecord(endpoint=admin, admin=admin, host="h", pid=9)
    job_registry = JobRegistry(store, job="flights", record=where, lease_ttl_s=60.0)
    assert await job_registry.try_claim() is None
    job_registry.epoch = 1
    sizes = JobSizes(worker_num=4, server_num=1, num_shards=4)
    await job_registry.write_job(JobRecord(state="waiting", sizes=sizes))
    worker = Member(
        role="worker", index=0, incarnation=0, endpoint="", admin="", host="h", pid=1
    )
    worker = replace(worker, incarnation=await job_registry.register(worker))
    facts = json.dumps({"versions": {"paramfleet": "0.0.0", "python": "3.11.1"}})
    await Registry(store, job="flights").beat(worker, epoch=1, facts=facts)
    await store.close()


async def test_a_job_of_other_versions_and_sizes_is_found(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_redis.start()
    await open_job(own_redis.url, admin="127.0.0.1:1")
    monkeypatch.setenv("PARAMFLEET_REDIS", own_redis.url)
    monkeypatch.setenv("PARAMFLEET_JOB", "flights")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")

    found = await in_thread()

    assert {"coordinator-unreachable", "version-differs", "sizes-differ"} <= found


@pytest.mark.parametrize("has_tls", [False, True])
async def test_a_coordinator_that_answers_is_no_finding(
    own_redis: EmbeddedRedis,
    certificates: Any,
    monkeypatch: pytest.MonkeyPatch,
    has_tls: bool,
) -> None:
    certificates.issue("pserver")
    pages = certificates.tls("coordinator").accepts("pserver", protocol="http/1.1")
    server = AdminServer(
        status=dict,
        ready=lambda: (True, ""),
        metrics=MetricRegistry(),
        tls=pages if has_tls else None,
    )
    await own_redis.start()
    await open_job(own_redis.url, admin=f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    monkeypatch.setenv("PARAMFLEET_REDIS", own_redis.url)
    monkeypatch.setenv("PARAMFLEET_JOB", "flights")
    if has_tls:
        monkeypatch.setenv("PARAMFLEET_TLS_DIR", str(certificates.folder / "ours"))

    found = await in_thread()
    await server.close()

    assert "version-differs" in found, "it did look at the job"
    assert not found & {"coordinator-unreachable", "clock-skew-coordinator"}


async def test_a_connection_that_the_coordinator_keeps_open_is_closed(
    own_redis: EmbeddedRedis, certificates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.issue("pserver")
    pages = certificates.tls("coordinator").accepts("pserver", protocol="http/1.1")
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:
        asked_enough = threading.Event()

        def answer_and_stay_silent() -> None:
            taken, _ = listening.accept()
            with pages.context().wrap_socket(taken, server_side=True) as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                asked_enough.wait(60)

        answering = thread.submit(answer_and_stay_silent)
        await own_redis.start()
        await open_job(own_redis.url, admin=f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("PARAMFLEET_REDIS", own_redis.url)
        monkeypatch.setenv("PARAMFLEET_JOB", "flights")
        monkeypatch.setenv("PARAMFLEET_TLS_DIR", str(certificates.folder / "ours"))

        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            found = await in_thread()
            gc.collect()
        asked_enough.set()
        answering.result()

    assert "version-differs" in found, "it did look at the job"
    assert "coordinator-unreachable" not in found
    assert not [str(each.message) for each in left_open]


def test_a_person_is_told_where_what_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARAMFLEET_JOBB", "flights")

    result = CliRunner().invoke(main, ["doctor", "--role", "pserver"])

    assert "FAILURE setting-unknown: PARAMFLEET_JOBB" in result.output
    assert "did you mean PARAMFLEET_JOB?" in result.output
    assert JobSettings().job == "default"
