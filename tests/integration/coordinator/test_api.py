"""The admin API of a coordinator: what it says of itself is what it does."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paramfleet_coordinator.api import stream
from paramfleet_coordinator.api.routes import API
from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.records import JobSizes
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
HEADS = {"Content-Type": "application/json"}
TABLE = {
    "name": "deep", "kind": "sparse", "rows": 9, "bytes": 900, "pulls": 2, "pushes": 1,
    "version": 1, "tier": "memory",
    "shards": [{"shard": 3, "rows": 9, "bytes": 900, "pulled": 12, "pushed": 9}],
}  # fmt: skip


async def admin_of(scene: Any) -> str:
    """Return the coordinator's admin address once it is announced."""
    store = RedisStore(scene.common["redis"], clock=SystemClock(), timeout_s=2.0)
    try:
        async with asyncio.timeout(LATE_S):
            find = Registry(store, job=scene.common["job"]).find_coordinator
            while True:
                coordinator = await find()
                if coordinator is not None:
                    break
                await asyncio.sleep(0.02)
    finally:
        await store.close()
    return f"http://{coordinator.admin}"


def ask(
    url: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str, str]:
    request = urllib.request.Request(url, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=LATE_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers["Content-Type"], refusal.read().decode()


@pytest.mark.slow
async def test_every_route_is_described_and_answers(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=2, server_num=1)
        await scene.crew(workers=2, pservers=1)
        url = await admin_of(scene)

        described = json.loads((await asyncio.to_thread(ask, f"{url}/api/v1/openapi.json"))[2])
        shown = {(p, m.upper()) for p, methods in described["paths"].items() for m in methods}
        assert shown == {(route.path, route.method) for route in API}
        for route in API:
            if route.method == "GET" and not route.path.endswith("stream"):
                where = url + route.path
                assert (await asyncio.to_thread(ask, where))[0] == 401, route.path
                status, kind, _ = await asyncio.to_thread(ask, where, headers=scene.heads)
                assert (status, kind) == (200, "application/json; charset=utf-8"), route.path
        for path, kind in (("/", "text/html"), ("/dashboard/app.js", "text/javascript"),
                           ("/dashboard/actions.js", "text/javascript"),
                           ("/dashboard/charts.js", "text/javascript"),
                           ("/dashboard/style.css", "text/css")):  # fmt: skip
            status, content, text = await asyncio.to_thread(ask, url + path)
            assert (status, content) == (200, f"{kind}; charset=utf-8")
            assert (
                "//"
                not in text.replace("http://www.w3.org/2000/svg", "").partition("https:")[2]
            )


@pytest.mark.slow
@pytest.mark.parametrize("first_has_disk", [True, False])
async def test_tables_tell_where_rows_are_whichever_server_has_some_on_disk(
    stage: Any, redis_url: str, job_name: str, first_has_disk: bool
) -> None:
    on_disk = {**TABLE, "rows": 50, "tier": "memory+disk", "cold_rows": 41}
    published = [on_disk, TABLE] if first_has_disk else [TABLE, on_disk]
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=2)
        _, pservers = await scene.crew(workers=1, pservers=2)
        for pserver, table in zip(pservers, published, strict=True):
            await pserver.session.publish({"tables": [table]})
        url = await admin_of(scene)
        tables: list[dict[str, Any]] = []
        async with asyncio.timeout(LATE_S):
            while not tables or len(tables[0]["servers"]) < 2:
                where = f"{url}/api/v1/tables"
                tables = json.loads(
                    (await asyncio.to_thread(ask, where, headers=scene.heads))[2]
                )

    (table,) = tables
    assert table["rows"] == 59
    assert table["rows_in_memory"] == 18
    assert table["rows_on_disk"] == 41
    assert table["tier"] == "memory+disk"


REFUSED: list[tuple[str, bytes, dict[str, str], int]] = [
    ("pause", b"{}", {"Content-Type": "text/plain"}, 415),
    ("pause", b"{}", {**HEADS, "Origin": "http://elsewhere.example"}, 403),
    ("pause", b'{"now": true}', HEADS, 422),
    ("pause", b"[1]", HEADS, 422),
    ("pause", b"{" * 3000, HEADS, 422),
    ("pause", b" " * 9000, HEADS, 413),
    ("settings", b'{"lr": "high"}', HEADS, 422),
    ("settings", b"{}", HEADS, 422),
    ("checkpoint", b'{"name": 3}', HEADS, 422),
    ("tables/shrink", b'{"table": 3}', HEADS, 422),
    ("tables/shrink", b'{"dry_run": 1}', HEADS, 422),
    ("tables/shrink", b'{"dry": true}', HEADS, 422),
    ("tables/shrink", b"{}", HEADS, 409),
    ("workers/x/drain", b"{}", HEADS, 422),
    ("workers/7/drain", b"{}", HEADS, 404),
    ("pause", b"{}", HEADS, 409),
    ("scale", b"{}", HEADS, 422),
    ("scale", b'{"pservers": true}', HEADS, 422),
    ("scale", b'{"pservers": 2}', HEADS, 409),
]


@pytest.mark.slow
async def test_what_can_not_be_is_refused_with_a_reason(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=1)
        url = await admin_of(scene)

        for path, body, headers, status in REFUSED:
            where = f"{url}/api/v1/{path}"
            heads = {**scene.heads, **headers}
            answer = await asyncio.to_thread(ask, where, body=body, headers=heads)

            assert answer[0] == status, (path, body)
            assert answer[2], (path, body)


@pytest.mark.slow
async def test_a_stream_begins_with_the_whole_and_is_taken_up_again(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=1)
        await scene.crew(workers=1, pservers=1)
        url = f"{await admin_of(scene)}/api/v1/stream"

        def read(last: str | None, count: int) -> list[tuple[str, int]]:
            headers = {**scene.heads, **({} if last is None else {"Last-Event-ID": last})}
            found: list[tuple[str, int]] = []
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=LATE_S
            ) as answer:
                assert answer.headers["Content-Type"] == "text/event-stream"
                while len(found) < count:
                    kind = answer.readline().decode().removeprefix("event: ").strip()
                    number = int(answer.readline().decode().removeprefix("id: "))
                    assert json.loads(answer.readline().decode().removeprefix("data: "))
                    answer.readline()
                    found.append((kind, number))
            return found

        (first, seen), (second, after) = await asyncio.to_thread(read, None, 2)
        assert (first, second) == ("whole", "frame")
        assert after == seen + 1
        assert (await asyncio.to_thread(read, str(seen), 1))[0] == ("frame", seen + 1)
        assert (await asyncio.to_thread(read, "999999", 1))[0][0] == "whole"


@pytest.mark.slow
async def test_a_reader_that_does_not_read_is_cut_off_and_makes_room(
    stage: Any, redis_url: str, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_READERS", 1)
    monkeypatch.setattr(stream, "_WRITE_TIMEOUT_S", 0.5)
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=1)
        _, (pserver,) = await scene.crew(workers=1, pservers=1)
        tables = [{**TABLE, "name": f"table {number}"} for number in range(1500)]
        await pserver.session.publish({"tables": tables})
        url = await admin_of(scene)
        host, _, port = url.removeprefix("http://").partition(":")
        sleeper = socket.socket()
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sleeper, (host, int(port)))
        token = scene.heads["Authorization"]
        asked = (
            f"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
        )
        await loop.sock_sendall(sleeper, asked.encode())

        def first_line() -> tuple[int, str]:
            request = urllib.request.Request(f"{url}/api/v1/stream", headers=scene.heads)
            try:
                with urllib.request.urlopen(request, timeout=LATE_S) as answer:
                    return answer.status, answer.readline().decode()
            except urllib.error.HTTPError as refusal:
                with refusal:
                    return refusal.code, ""

        seen = [await asyncio.to_thread(first_line)]
        async with asyncio.timeout(LATE_S):
            while seen[-1][0] == 503:
                await asyncio.sleep(0.1)
                seen.append(await asyncio.to_thread(first_line))

        assert seen[0] == (503, ""), "the one place was taken"
        assert seen[-1] == (200, "event: whole\n")
        with contextlib.suppress(ConnectionResetError):
            while await loop.sock_recv(sleeper, 1 << 16):  # what was on its way, then the end
                pass
        sleeper.close()


@pytest.mark.slow
async def test_the_status_tells_what_a_pserver_does(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=1)
        _, (pserver,) = await scene.crew(workers=1, pservers=1)
        url = await admin_of(scene)
        progress = {"snapshot_bytes": 3, "of_snapshot_bytes": 9}
        progress |= {"commands": 0, "of_commands": 4}
        restoring = {"state": "restoring", "restoring": progress, "tables": []}
        restored = {"rows": 9, "commands": 4, "seconds": 1.5}

        async def server(wanted: str, **facts: Any) -> dict[str, Any]:
            await pserver.session.publish({"incarnation": 1, **facts})
            async with asyncio.timeout(LATE_S):
                while True:
                    text = await asyncio.to_thread(
                        ask, f"{url}/api/v1/status", headers=scene.heads
                    )
                    (found,) = json.loads(text[2])["servers"]
                    if found["state"] == wanted:
                        return dict(found)
                    await asyncio.sleep(0.02)

        told = await server("restoring", **restoring)
        assert (told["restoring"], told["rows"], told["restored"]) == (progress, None, None)
        told = await server("serving", state="serving", tables=[TABLE], restored=restored)
        assert (told["restoring"], told["restored"]) == (None, restored)
        told = await server("starting", **{**restoring, "incarnation": 2})
        assert told["restoring"] is None, "it is of another process"


@pytest.mark.slow
@pytest.mark.parametrize("has_token", [True, False])
async def test_nothing_that_is_asked_makes_the_coordinator_fail(
    stage: Any, redis_url: str, job_name: str, tmp_path: Path, has_token: bool
) -> None:
    async with stage(redis_url, job_name) as scene:
        scene.coordinator(worker_num=1, server_num=1)
        _, (pserver,) = await scene.crew(workers=1, pservers=1)
        await pserver.session.publish({"tables": [TABLE]})
        url = await admin_of(scene)
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/v1/openapi.json",
            "--exclude-path=/api/v1/stream", "--max-examples=8", "--phases=examples,fuzzing",
            f"--checks={','.join(CHECKS)}", "--seed=7", "--no-color",
        ]  # fmt: skip
        if has_token:
            command.append(f"--header=Authorization: {scene.heads['Authorization']}")

        run = partial(subprocess.run, tied(command), cwd=tmp_path, check=False)
        ended = await asyncio.to_thread(run, capture_output=True, text=True)

        assert re.search(r"(\d\d+) generated, \1 passed", ended.stdout), ended.stdout[-4000:]
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]


async def act(scene: Any, url: str, action: str) -> None:
    """Do something to the job, as soon as it trains."""
    async with asyncio.timeout(LATE_S):
        while True:
            where, heads = f"{url}/api/v1/{action}", {**HEADS, **scene.heads}
            status, _, said = await asyncio.to_thread(ask, where, body=b"{}", headers=heads)
            if status != 409:
                break
            await asyncio.sleep(0.05)
    assert status == 200, said


async def audited(scene: Any, url: str) -> list[tuple[int, str]]:
    text = (await asyncio.to_thread(ask, f"{url}/api/v1/audit", headers=scene.heads))[2]
    return [(entry["number"], entry["action"]) for entry in json.loads(text)]


async def command(redis: str, job: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "paramfleet_worker", "audit", *more]
    environment = {**read_environment(), "PARAMFLEET_REDIS": redis, "PARAMFLEET_JOB": job}
    run = partial(subprocess.run, tied(words), env=environment, check=False)
    return await asyncio.to_thread(run, capture_output=True, text=True)


@pytest.mark.slow
async def test_an_audit_outlasts_the_coordinator_the_registrys_memory_and_the_job(
    stage: Any, redis_url: str, job_name: str
) -> None:
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
    async with stage(redis_url, job_name) as scene:
        first = scene.coordinator(worker_num=1, server_num=1)
        (worker,), _ = await scene.crew(workers=1, pservers=1)
        await worker.session.publish({"mode": "async", "step": 1})
        url = await admin_of(scene)
        await act(scene, url, "pause")
        await act(scene, url, "resume")
        assert await audited(scene, url) == [(1, "pause"), (2, "resume")]

        first.cancel()
        await asyncio.wait([first])
        scene.coordinator(worker_num=1, server_num=1)
        url = await admin_of(scene)
        assert await audited(scene, url) == [(1, "pause"), (2, "resume")]

        await store.command("DEL", Keys(job_name).of_job("audit"))
        await act(scene, url, "pause")
        assert await audited(scene, url) == [(1, "pause"), (2, "resume"), (3, "pause")]
    await store.command(
        "DEL", Keys(job_name).of_job("coordinator")
    )  # were it not given back yet
    await store.close()

    told = await command(redis_url, job_name)

    assert told.returncode == 0, told.stderr
    heads, *lines = told.stdout.splitlines()
    assert heads.split() == ["number", "at", "who", "peer", "action", "before", "after"]
    actions = [re.sub(r".* 127.0.0.1 +(\w+) .*", r"\1", line) for line in lines]
    assert actions == ["pause", "resume", "pause"]
    assert all("token of-the-job's-secret" in line for line in lines)
    assert "the coordinator is gone" in told.stderr
    plain = json.loads((await command(redis_url, job_name, "--json")).stdout)
    assert plain[0]["after"] == {"paused": True}


async def test_an_operator_whose_write_fails_takes_nothing_back_of_what_another_has_stored(
    redis_url: str, job_name: str
) -> None:
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
    where = CoordinatorRecord(endpoint="h:1", admin="", host="h", pid=1)
    registry = JobRegistry(store, job=job_name, record=where, lease_ttl_s=60.0)
    await registry.try_claim()
    registry.epoch = 1
    sizes = JobSizes(worker_num=1, server_num=1, num_shards=4)
    rules = JobRules(lease_ttl_s=4.0, lease_renew_s=0.5, start_timeout_s=60.0)
    job = Job(sizes, rules=rules)
    routes = RpcRoutes(
        job,
        registry,
        gathering=Gathering(sizes, settle_s=0.0),
        name=job_name,
        clock=SystemClock(),
        tick_s=0.25,
    )
    await registry.write_job(job.record)

    def changing(**changes: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(
            routes.give(lambda now: replace(now, version=now.version + 1, **changes))
        )

    first, second = changing(paused=True), changing(settings={"lr": 0.5})
    await asyncio.sleep(0)
    first.cancel()  # as where its connection ends, or Redis answers too late
    await asyncio.wait([first, second])
    await asyncio.gather(changing(drained=(1,)), changing(ends=True))
    late = replace(job.record, orders=Orders(version=1, paused=True))
    await registry.write_job(late)
    stored = (await registry.tick()).job
    await store.close()

    assert stored is not None
    assert stored.orders == routes.orders
    assert (stored.orders.settings, stored.orders.drained) == ({"lr": 0.5}, (1,))
    assert stored.orders.ends
