"""A pserver whose descriptors are used up, in a process of its own with few of them."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import ContractError
from paramfleet_shared.net.rpc.client import Channel, PeerUnreachableError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

CLOCK = SystemClock()
FLAT = TableSpec(name="flat", kind="dense", size=24)
FEW = 160
"""Files that the pserver may have open; it needs some thirty for itself."""

pytestmark = pytest.mark.slow


@pytest.fixture
def short_of_descriptors(
    redis_url: str, job_name: str, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A pserver that may open few files, and at first fewer."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW // 2, FEW))

    environment = {
        **read_environment(),
        "PARAMFLEET_SECRET": SECRET,
        "PARAMFLEET_CHECKPOINT_DIRS": str(tmp_path),
    }
    command = ["paramfleet_pserver", "--redis", redis_url, "--job", job_name]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            tied([sys.executable, "-m", *command]),
            stderr=log,
            stdout=log,
            env=environment,
            preexec_fn=limit,  # noqa: PLW1509 (no threads as yet)
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def session(redis_url: str, job_name: str) -> AsyncIterator[JobSession]:
    common: dict[str, Any] = {"redis": redis_url, "job": job_name, "secret": SECRET}
    resolved = resolve(
        CoordinatorSettings,
        section="coordinator",
        arguments={**common, "server_num": 1, "worker_num": 1, "finish_grace_s": 3.0},
        environment={},
    )
    async with asyncio.TaskGroup() as group:
        coordinating = group.create_task(Coordinator(resolved, clock=CLOCK).serve())
        session = await JobSession.join(
            JobSettings(**common),
            role="worker",
            index=None,
            endpoint="",
            admin="",
            clock=CLOCK,
        )
        beating = group.create_task(session.run())
        yield session
        await session.mark_done()
        await session.leave()
        await coordinating
        beating.cancel()


async def take_all(endpoint: str, job: str, log: Path, stack: AsyncExitStack) -> int:
    """Connect, call once, and keep quiet, until nobody is let in; return how many were."""
    port = endpoint.rpartition(":")[2]
    ways = [endpoint, f"localhost:{port}"]  # a name is never reached by a Unix socket
    num_taken, secret = 0, secret_for(job)
    while b"open files are in use" not in log.read_bytes():  # noqa: ASYNC240 (it is short)
        assert num_taken < FEW
        channel = Channel(ways[num_taken % 2], peer="pserver 0", clock=CLOCK, secret=secret)
        stack.push_async_callback(channel.close)
        with suppress(PeerUnreachableError):  # closed at once: the log says why
            with suppress(ContractError):  # there is no such operation
                await channel.call("nothing", Message(), timeout_s=1.0)
            num_taken += 1
    return num_taken


async def admin_of(redis: str, job: str) -> str:
    store = RedisStore(redis, clock=CLOCK, timeout_s=1.0)
    members = await Registry(store, job=job).read_members(1)
    await store.close()
    return next(member.admin for member in members if member.role == "pserver")


async def test_a_server_without_descriptors_still_saves_and_answers(
    short_of_descriptors: subprocess.Popen[bytes],
    session: JobSession,
    redis_url: str,
    job_name: str,
    tmp_path: Path,
) -> None:
    placement = await session.wait_placement()
    (endpoint,) = placement.endpoints
    member = {"rank": session.member.index, "incarnation": session.member.incarnation}
    terms = {"tables": [FLAT.to_wire()], "mode": "async", "worker_num": 1}
    folder = str(tmp_path / "saved")
    async with AsyncExitStack() as stack:
        secret = secret_for(job_name)
        worker = Channel(endpoint, peer="pserver 0", clock=CLOCK, secret=secret)
        stack.push_async_callback(worker.close)
        declaration = Message(fields={**member, **terms, "max_staleness": None})
        await worker.call("declare", declaration, timeout_s=LATE_S)

        num_taken = await take_all(endpoint, job_name, tmp_path / "log", stack)

        saving = Message(fields={**member, "dirname": folder})
        saved = await worker.call("save", saving, timeout_s=LATE_S)
        url = f"http://{await admin_of(redis_url, job_name)}/healthz"
        timeout = aiohttp.ClientTimeout(LATE_S)
        async with aiohttp.ClientSession() as http, http.get(url, timeout=timeout) as answer:
            health = await answer.json()

    assert num_taken > FEW // 4
    assert saved.fields["files"]
    assert health == {"ok": True}
    assert short_of_descriptors.poll() is None
