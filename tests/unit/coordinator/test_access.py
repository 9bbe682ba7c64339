"""The record of who changed what."""

import json
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from paramfleet_coordinator.access import AUDIT_LOG, RIGHTS, AuditLog, audit, requires
from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_shared.discovery.job_registry import AUDIT_ENTRIES as MAX
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import JobSizes
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord
from paramfleet_shared.net.access import Gate, Identity
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry


def noon() -> datetime:
    return datetime(2026, 5, 1, 12, tzinfo=UTC)


def fill(audit_log: AuditLog, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        audit_log.record(who="a", peer="p", action=str(number), before=None, after=None)


@requires("admin")
async def pause(request: web.Request) -> web.Response:
    await audit(request, "pause", before="running", after="paused")
    return web.Response()


async def test_a_change_is_kept_with_who_when_and_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    audit_log = AuditLog(now=noon)
    ops = Identity(roles=frozenset({"admin"}), name="ops")
    server = AdminServer(
        status=dict,
        ready=lambda: (True, ""),
        metrics=MetricRegistry(),
        routes=[web.post("/pause", pause)],
        state={AUDIT_LOG: audit_log},
        gate=Gate(by_token=lambda _: ops),
    )
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer x"}) as client:
        await client.post(f"http://127.0.0.1:{port}/pause")
    await server.close()

    (kept,) = audit_log.entries
    assert kept.to_plain() == {
        "number": 1,
        "at": "2026-05-01T12:00:00.000+00:00",
        "who": "ops",
        "peer": "127.0.0.1",
        "action": "pause",
        "before": "running",
        "after": "paused",
    }
    assert any(each.message == "audit" for each in caplog.records)


def test_only_the_latest_changes_are_kept() -> None:
    audit_log = AuditLog(now=noon)

    fill(audit_log, MAX + 5)

    assert [each.action for each in audit_log.entries] == [str(n) for n in range(5, MAX + 5)]


def test_a_restarted_process_goes_on_with_the_former_ones_changes() -> None:
    former, audit_log = AuditLog(now=noon), AuditLog(now=noon)
    fill(former, 2)

    audit_log.restore([json.dumps(entry.to_plain()) for entry in former.entries])
    fill(audit_log, 1, first=2)

    assert [each.action for each in audit_log.entries] == ["0", "1", "2"]
    assert [each.number for each in audit_log.entries] == [1, 2, 3]


async def test_every_operation_for_members_names_the_roles_that_may_ask_for_it() -> None:
    sizes, clock = JobSizes(worker_num=1, server_num=1, num_shards=4), SystemClock()
    job = Job(sizes, rules=JobRules(lease_ttl_s=4.0, lease_renew_s=0.5, start_timeout_s=0.0))
    store = RedisStore("redis://127.0.0.1:1", clock=clock, timeout_s=1.0)
    record = CoordinatorRecord(endpoint="", admin="", host="h", pid=1)
    routes = RpcRoutes(
        job,
        JobRegistry(store, job="flights", record=record, lease_ttl_s=4.0),
        gathering=Gathering(sizes, settle_s=1.0),
        name="flights",
        clock=clock,
        tick_s=1.0,
    )

    assert set(routes.handlers()) == set(RIGHTS)
    assert all(RIGHTS.values())
    await store.close()
