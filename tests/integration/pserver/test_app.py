"""A pserver's life in a job: a real coordinator, a real Redis, one event loop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest
from click.testing import CliRunner

from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_pserver.__main__ import main
from paramfleet_pserver.app import PServer, run
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    ManifestError,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError, JobFailedError
from paramfleet_shared.net.rpc.client import Channel, DeadlineExceededError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings, UnknownSettingError, resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.kernels.basics.readiness import (
    is_cold,
    kernel_folders,
    note_compiled,
)
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.tables.warm import warm_all
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.proxy import Proxy
from paramfleet_shared.testing.secrets import SECRET, secret_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CLOCK = SystemClock()
FLAT = TableSpec(name="flat", kind="dense", size=24)
SHARED = secret_for("test")
FAST = {
    "lease_ttl_s": 1.5,
    "lease_renew_s": 0.1,
    "join_timeout_s": LATE_S,
    "call_timeout_s": 3.0,
}

pytestmark = pytest.mark.slow


class Job:
    """Starts the members of one job and keeps their tasks."""

    def __init__(self, group: asyncio.TaskGroup, redis: str) -> None:
        self._group = group
        self.common: dict[str, Any] = {**FAST, "redis": redis, "job": "test", "secret": SECRET}
        self.heads = {"Authorization": f"Bearer {SHARED.token('read')}"}
        self.sessions: list[JobSession] = []

    def coordinator(self, *, pservers: int = 1, **settings: Any) -> asyncio.Task[int]:
        resolved = resolve(
            CoordinatorSettings,
            section="coordinator",
            arguments={
                **self.common,
                "server_num": pservers,
                "finish_grace_s": 3.0,
                **settings,
            },
            environment={},
        )
        return self._group.create_task(Coordinator(resolved, clock=CLOCK).serve())

    def pserver(self, **settings: Any) -> tuple[PServer, asyncio.Task[FleetError | None]]:
        server = PServer(
            PServerSettings(**{**self.common, "owner_threads": 1, **settings}),
            clock=CLOCK,
            config={"job": {"value": "test", "origin": "argument"}},
        )

        async def serve() -> FleetError | None:
            try:
                await server.run()
            except FleetError as error:
                return error
            return None

        return server, self._group.create_task(serve())

    async def worker(self) -> tuple[JobSession, asyncio.Task[FleetError | None]]:
        session = await JobSession.join(
            JobSettings(**self.common),
            role="worker",
            index=None,
            endpoint="",
            admin="",
            clock=CLOCK,
        )
        self.sessions.append(session)

        async def beat() -> FleetError | None:
            try:
                await session.run()
            except FleetError as error:
                return error
            return None

        return session, self._group.create_task(beat())


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """Load the kernels once, before anybody waits for a pserver that does."""
    warm_all()


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    redis = EmbeddedRedis(tmp_path, clock=CLOCK)
    await redis.start()
    try:
        async with asyncio.TaskGroup() as group:
            job = Job(group, redis.url)
            yield job
            for session in job.sessions:
                await session.leave()
    finally:
        redis.stop()


def declaration(**terms: Any) -> Message:
    fields = {
        "tables": [FLAT.to_wire()],
        "mode": "sync",
        "worker_num": 1,
        "max_staleness": None,
        "rank": 0,
        "incarnation": 1,
    }
    return Message(fields={**fields, **terms})


def reading(min_version: int = 0) -> Message:
    parts = [{"table": "flat", "create": False}]
    return Message(fields={"rank": 0, "min_version": min_version, "parts": parts})


async def test_kernels_that_few_tables_need_are_compiled_when_one_is_declared(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    compiled = next(folder for folder in kernel_folders() if folder.is_dir())
    kernels = tmp_path / "kernels"
    without_marks = shutil.ignore_patterns("complete-*")  # they are loaded: that is quicker
    shutil.copytree(compiled, kernels / compiled.name, ignore=without_marks)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kernels))
    note_compiled()
    job.pserver()
    coordinator = job.coordinator()
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=SHARED)
    rows = TableSpec(name="rows", kind="sparse", storage="bfloat16")

    declared = declaration(tables=[rows.to_wire()], wire_dtype="bfloat16")
    await channel.call("declare", declared, timeout_s=LATE_S)

    (told,) = [
        line for line in capfd.readouterr().err.splitlines() if "kernels.compiled" in line
    ]
    assert "wire, bfloat16, coded-bfloat16" in told
    assert not is_cold("bfloat16")
    await channel.close()
    await session.mark_done()
    await session.leave()
    assert await coordinator == 0


async def test_it_serves_its_shards_until_the_job_has_finished(job: Job) -> None:
    pservers = [job.pserver() for _ in range(2)]
    coordinator = job.coordinator(pservers=2)
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channels = [
        Channel(endpoint, peer=f"pserver {index}", clock=CLOCK, secret=SHARED)
        for index, endpoint in enumerate(placement.endpoints)
    ]

    sizes = []
    for channel in channels:
        await channel.call("declare", declaration(), timeout_s=LATE_S)
        sizes.append(
            len((await channel.call("pull", reading(), timeout_s=LATE_S)).tensors["0.rows"])
        )
        await channel.close()
    await session.mark_done()
    await session.leave()

    assert sizes == [12, 12]
    assert [await ended for _, ended in pservers] == [None, None]
    assert await coordinator == 0


@pytest.mark.parametrize("hosting", ["fixed", "planned"])
async def test_it_ends_well_if_its_launch_has_finished_before_it_came(
    job: Job, tmp_path: Path, hosting: str
) -> None:
    job.common["launch"] = "own"
    keeps = {"hosting": hosting, "durability": "async", "data_dir": str(tmp_path / "data")}
    coordinator = job.coordinator(server_processes=1 if hosting == "planned" else 0)
    _, ended = job.pserver(index=0, **keeps)
    session, _ = await job.worker()
    await session.wait_placement()
    await session.mark_done()
    await session.leave()
    assert await ended is None
    assert await coordinator == 0

    _, ended = job.pserver(index=0, **keeps)

    assert await ended is None


async def test_a_job_runs_on_addresses_of_ipv6(job: Job) -> None:
    _, ended = job.pserver(host="::1")
    coordinator = job.coordinator(host="::1")
    session, _ = await job.worker()
    (endpoint,) = (await session.wait_placement()).endpoints
    channel = Channel(endpoint, peer="pserver 0", clock=CLOCK, secret=SHARED)

    await channel.call("declare", declaration(), timeout_s=LATE_S)

    await channel.close()
    await session.mark_done()
    await session.leave()
    assert endpoint.startswith("[::1]:")
    assert await ended is None
    assert await coordinator == 0


async def test_workers_reach_it_where_it_advertises(job: Job) -> None:
    async with Proxy(port := free_port()) as wire:
        _, ended = job.pserver(port=port, advertise=wire.endpoint)
        coordinator = job.coordinator()
        session, _ = await job.worker()
        (endpoint,) = (await session.wait_placement()).endpoints
        channel = Channel(endpoint, peer="pserver 0", clock=CLOCK, secret=SHARED)

        await channel.call("declare", declaration(), timeout_s=LATE_S)

        await channel.close()
        await session.mark_done()
        await session.leave()
        assert endpoint == wire.endpoint
        assert wire.num_connections == 1
        assert await ended is None
        assert await coordinator == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_its_admin_address_tells_how_it_stands(job: Job) -> None:
    server, ended = job.pserver(index=0)
    assert server.ready() == (False, "joining the job")
    assert server.status()["index"] is None
    coordinator = job.coordinator()
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=SHARED)
    await channel.call("declare", declaration(), timeout_s=LATE_S)
    await channel.close()
    (admin,) = await admin_addresses(job)

    async with aiohttp.ClientSession(f"http://{admin}", headers=job.heads) as http:
        answers = {}
        for page in ("status", "readyz", "config"):
            async with http.get(f"/{page}") as answer:
                answers[page] = json.loads(await answer.text())
        metrics = await measured(http)
    await session.mark_done()

    assert 'paramfleet_table_rows{table="flat"} 24.0' in metrics
    assert "paramfleet_pserver_receiving_bytes 0.0" in metrics
    assert "paramfleet_pserver_sending_bytes 0.0" in metrics
    assert answers["readyz"]["ready"] is True
    assert answers["config"]["job"]["value"] == "test"
    status = answers["status"]
    assert (status["role"], status["index"], status["incarnation"]) == ("pserver", 0, 1)
    assert (status["mode"], status["members"]) == ("sync", [{"rank": 0, "steps": 0}])
    assert [table["name"] for table in status["tables"]] == ["flat"]
    assert status["uptime_s"] > 0
    assert await ended is None
    await session.leave()
    assert await coordinator == 0


@pytest.mark.parametrize(
    ("threads", "said"), [(1, []), (3, ["group=0 blocks=1 threads=1 owner_threads=3"])]
)
async def test_one_that_comes_back_says_how_far_it_is_and_what_it_has_restored(
    job: Job,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    threads: int,
    said: list[str],
) -> None:
    keeps = {"index": 0, "durability": "async", "data_dir": str(tmp_path / "data")}
    coordinator = job.coordinator()
    _, former = job.pserver(**keeps)
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=SHARED)
    rows = TableSpec(name="rows", kind="sparse", dim=4)
    tables = [FLAT.to_wire(), rows.to_wire()]
    await channel.call("declare", declaration(tables=tables), timeout_s=LATE_S)
    parts = [{"table": "rows", "create": True}]
    asked = {"rank": 0, "min_version": 0, "parts": parts}
    routed = partition(np.arange(50, dtype=np.int64), session.num_shards)
    ids = {"0.ids": routed.ids, "0.offsets": routed.offsets}
    await channel.call("pull", Message(fields=asked, tensors=ids), timeout_s=LATE_S)
    await channel.close()
    former.cancel()
    await asyncio.wait([former])

    server, ended = job.pserver(**keeps, owner_threads=threads)
    seen = []
    while (state := server.status()["state"]) != "serving":
        seen.append((state, server.status().get("restoring"), server.ready()))
        assert not ended.done(), ended.result()
        await asyncio.sleep(0)
    await session.mark_done()
    await session.leave()

    told = [each for each in seen if each[0] == "restoring"]
    assert [state for state, _, _ in told] == [state for state, _, _ in seen][-len(told) :]
    progress: Any = told[-1][1]
    assert 0 < progress["snapshot_bytes"] == progress["of_snapshot_bytes"]
    assert 0 < progress["commands"] == progress["of_commands"]
    assert told[-1][2] == (False, "restoring the tables that the former process had")
    restored: Any = server.status()["restored"]
    assert (restored["rows"], restored["commands"]) == (50, progress["commands"])
    assert restored["seconds"] >= 0
    logged = capsys.readouterr().err
    assert re.findall(r"pserver\.keeps_blocks (.*?) reason=", logged) == said
    assert await ended is None
    assert await coordinator == 0


async def measured(http: aiohttp.ClientSession) -> str:
    """Return the metrics when the tables are among them, which is within a period."""
    async with asyncio.timeout(LATE_S):
        while True:
            async with http.get("/metrics") as answer:
                text = await answer.text()
            if "paramfleet_table_rows{" in text:
                return text
            await asyncio.sleep(0.05)


async def admin_addresses(job: Job) -> list[str]:
    store = RedisStore(job.common["redis"], clock=CLOCK, timeout_s=1.0)
    members = await Registry(store, job="test").read_members(1)
    await store.close()
    return [member.admin for member in members if member.role == "pserver"]


async def test_a_failed_job_ends_its_waiting_pulls_and_itself(job: Job) -> None:
    _, ended = job.pserver()
    coordinator = job.coordinator()
    session, beating = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=SHARED)
    await channel.call("declare", declaration(), timeout_s=LATE_S)

    async def fails() -> None:
        with pytest.raises(JobFailedError, match="worker 0: out of memory") as caught:
            await channel.call("pull", reading(min_version=1), timeout_s=LATE_S)
        assert caught.value.remote

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails())
        await session.fail("out of memory")
    await channel.close()

    error = await ended
    assert isinstance(error, JobFailedError)
    assert (error.role, error.index) == ("worker", 0)
    assert isinstance(await beating, JobFailedError)
    assert await coordinator == 1


async def test_a_checkpoint_that_can_not_be_read_ends_the_job_by_its_name(
    job: Job, tmp_path: Path
) -> None:
    coordinator = job.coordinator()
    _, beating = await job.worker()  # which couldn't join once the job has failed
    _, ended = job.pserver(load=str(tmp_path / "nothing"))

    assert isinstance(await ended, ManifestError)
    failure = await beating
    assert isinstance(failure, JobFailedError)
    assert (failure.role, failure.index) == ("pserver", 0)
    assert "nothing" in failure.reason
    assert await coordinator == 1


async def test_it_starts_from_a_checkpoint(job: Job, tmp_path: Path) -> None:
    coordinator = job.coordinator()
    _, saving = job.pserver(checkpoint_dirs=str(tmp_path))
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=SHARED)
    await channel.call("declare", declaration(), timeout_s=LATE_S)
    fields = {"rank": 0, "incarnation": 1, "table": "flat", "only_if_new": True}
    values = np.arange(24, dtype=np.float32)
    await channel.call(
        "assign", Message(fields=fields, tensors={"rows": values}), timeout_s=LATE_S
    )
    folder = tmp_path / "saved"
    saved = await channel.call(
        "save",
        Message(fields={"rank": 0, "incarnation": 1, "dirname": str(folder)}),
        timeout_s=LATE_S,
    )
    await channel.close()
    manifest = Manifest(
        tables=tuple(SavedTable.from_wire(wire) for wire in saved.fields["tables"]),
        files=tuple(SavedFile.from_wire(wire) for wire in saved.fields["files"]),
    )
    write_manifest(folder, manifest)
    await session.mark_done()
    await session.leave()
    assert await saving is None
    assert await coordinator == 0

    job.common["job"] = "test2"
    coordinator = job.coordinator()
    _, loading = job.pserver(load=str(folder))
    session, _ = await job.worker()
    placement = await session.wait_placement()
    channel = Channel(
        placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=secret_for("test2")
    )
    declared = await channel.call("declare", declaration(), timeout_s=LATE_S)
    got = await channel.call("pull", reading(), timeout_s=LATE_S)
    await channel.close()
    await session.mark_done()
    await session.leave()

    assert declared.fields["loaded"] == ["flat"]
    np.testing.assert_array_equal(got.tensors["0.rows"], values)
    assert await loading is None
    assert await coordinator == 0


async def test_a_termination_signal_tells_the_job_and_ends_it_cleanly(job: Job) -> None:
    server, ended = job.pserver()
    coordinator = job.coordinator()
    session, beating = await job.worker()
    await session.wait_placement()
    async with asyncio.timeout(LATE_S):
        while not server.ready()[0]:  # it is placed before it has the answer that it joined
            await CLOCK.sleep(0.01)

    os.kill(os.getpid(), signal.SIGTERM)

    assert await ended is None
    failure = await beating
    assert isinstance(failure, JobFailedError)
    assert (failure.role, failure.reason) == ("pserver", "stopped by SIGTERM")
    assert await coordinator == 1


async def test_a_termination_signal_before_it_has_joined_ends_it_too(
    job: Job, unused_tcp_port: int
) -> None:
    _, ended = job.pserver(port=unused_tcp_port, index=0)
    channel = Channel(
        f"127.0.0.1:{unused_tcp_port}", peer="pserver 0", clock=CLOCK, secret=SHARED
    )
    with pytest.raises(DeadlineExceededError):  # it listens, and the request waits
        await channel.call("status", Message(), timeout_s=0.5)
    await channel.close()

    os.kill(os.getpid(), signal.SIGTERM)

    assert await ended is None


async def test_a_request_that_comes_before_it_has_joined_waits(
    job: Job, unused_tcp_port: int
) -> None:
    _, ended = job.pserver(port=unused_tcp_port, index=0)
    channel = Channel(
        f"127.0.0.1:{unused_tcp_port}", peer="pserver 0", clock=CLOCK, secret=SHARED
    )

    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(channel.call("declare", declaration(), timeout_s=8.0))
        coordinator = job.coordinator()
        session, _ = await job.worker()
    await channel.close()
    await session.mark_done()
    await session.leave()

    assert early.result().fields["created"] == ["flat"]
    assert await ended is None
    assert await coordinator == 0


def test_the_command_says_in_one_line_why_it_could_not_join(tmp_path: Path) -> None:
    arguments = ["--redis", "redis://127.0.0.1:1/0", "--join-timeout-s", "0.3"]

    words = [*arguments, "--owner-threads", "1"]
    result = CliRunner().invoke(main, words, env={"PARAMFLEET_SECRET": SECRET})

    assert result.exit_code == 1
    assert result.output.startswith("paramfleet pserver: ")
    assert "redis://127.0.0.1:1/0" in result.output


def test_the_command_refuses_to_serve_everybody_and_says_what_to_do() -> None:
    result = CliRunner().invoke(main, [], env={"PARAMFLEET_SECRET": None})

    assert result.exit_code == 1
    assert "PARAMFLEET_SECRET_FILE" in result.output


def test_serving_takes_its_settings_from_arguments_and_refuses_unknown_ones() -> None:
    given = {"redis": "redis://127.0.0.1:1/0", "join_timeout_s": 0.3, "secret": SECRET}
    with pytest.raises(NoRedisError):
        run({**given, "owner_threads": 1})
    with pytest.raises(UnknownSettingError):
        run({"shards": 4})
