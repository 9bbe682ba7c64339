"""The record of who changed what."""

from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from paramfleet_coordinator.access import AUDIT_LOG, AuditEntry, AuditLog, audit, requires
from paramfleet_coordinator.access import MAX_ENTRIES as MAX
from paramfleet_shared.access import Gate, Identity
from paramfleet_shared.admin import AdminServer
from paramfleet_shared.telemetry import MetricRegistry


def noon() -> datetime:
    return datetime(2026, 5, 1, 12, tzinfo=UTC)


def fill(audit_log: AuditLog, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        audit_log.record(who="a", peer="p", action=str(number), before=None, after=None)


def entry(action: str) -> AuditEntry:
    return AuditEntry(at="then", who="b", peer="p", action=action, before=None, after=None)


@requires("admin")
async def pause(request: web.Request) -> web.Response:
    audit(request, "pause", before="running", after="paused")
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


def test_every_change_goes_to_the_sink() -> None:
    seen: list[AuditEntry] = []

    fill(AuditLog(now=noon, sink=seen.append), 3)

    assert [each.action for each in seen] == ["0", "1", "2"]


@pytest.mark.parametrize(("num_new", "num_old"), [(0, 2), (2, 2), (MAX, 2), (1, MAX + 3)])
def test_changes_of_a_former_process_come_before_and_push_none_out(
    num_new: int, num_old: int
) -> None:
    audit_log = AuditLog(now=noon)
    fill(audit_log, num_new)

    audit_log.restore([entry(f"old {number}") for number in range(num_old)])

    room = min(num_old, MAX - num_new)
    old = [f"old {number}" for number in range(num_old - room, num_old)]
    assert [each.action for each in audit_log.entries] == [
        *old,
        *(str(n) for n in range(num_new)),
    ]
