"""A job of real processes to attack: a coordinator and a pserver; the test is its worker."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.prepared.plugin import pytest_runtest_protocol, pytest_sessionfinish

from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.settings.config import JobSettings, read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]


class Target:
    """The processes of a job, and their logs."""

    def __init__(self, redis: str, job: str, folder: Path) -> None:
        self.settings = JobSettings(redis=redis, job=job, secret=SECRET, lease_ttl_s=30.0)
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._channels: list[Channel] = []
        self.coordinator = ""
        """``host:port`` of the coordinator's calls, once a worker has joined."""
        self.pserver = ""
        """``host:port`` of the pserver's data plane, once a worker has joined."""

    def start(self, role: str, *options: str) -> None:
        """Start a coordinator or a pserver."""
        environment = {
            **read_environment(),
            "PARAMFLEET_REDIS": self.settings.redis,
            "PARAMFLEET_JOB": self.settings.job,
            "PARAMFLEET_SECRET": SECRET,
            "PARAMFLEET_LEASE_TTL_S": "30",
        }
        with self.log(role).open("ab") as log:
            self._processes[role] = subprocess.Popen(
                tied([sys.executable, "-m", f"paramfleet_{role}", *options]),
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def is_running(self, role: str) -> bool:
        return self._processes[role].poll() is None

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[JobSession]:
        """Be the job's worker; the job ends with it."""
        session = await JobSession.join(
            self.settings, role="worker", index=0, endpoint="", admin="", clock=SystemClock()
        )
        life = asyncio.ensure_future(session.run())  # noqa: TID251 - ended below
        try:
            placement = await session.wait_placement()
            self.pserver = placement.endpoints[0]
            self.coordinator = await self._find_coordinator()
            yield session
            await session.mark_done()
        finally:
            for channel in self._channels:
                await channel.close()
            life.cancel()
            await session.leave()

    async def _find_coordinator(self) -> str:
        store = store_of(self.settings, clock=SystemClock(), timeout_s=LATE_S)
        try:
            found = await Registry(store, job=self.settings.job).find_coordinator()
        finally:
            await store.close()
        assert found is not None, "a worker has joined"
        return found.endpoint

    def channel(self, endpoint: str, peer: str) -> Channel:
        """Return a member's way to another; it is closed with the worker."""
        secret = secret_for(self.settings.job)
        channel = Channel(endpoint, peer=peer, clock=SystemClock(), secret=secret)
        self._channels.append(channel)
        return channel

    def complaints(self) -> list[str]:
        """Return what the processes logged of errors that nobody had planned."""
        found = []
        for role in self._processes:
            text = self.log(role).read_text(errors="replace")
            found += [line for line in text.splitlines() if "handler_failed" in line]
            found += [line for line in text.splitlines() if "Traceback" in line]
        return found


@pytest.fixture
def target(redis_url: str, job_name: str, tmp_path: Path) -> Iterator[Target]:
    """Return a running job without workers."""
    target = Target(redis_url, job_name, tmp_path)
    target.start("coordinator", "--worker-num=1", "--server-num=1")
    target.start("pserver", "--index=0", "--owner-threads=1")
    try:
        yield target
    finally:
        target.stop()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


async def exchange_bytes(endpoint: str, text: bytes, *, within_s: float = LATE_S) -> bytes:
    """Send bytes to a port; return what comes until the other end closes.

    Raises:
        TimeoutError: if it doesn't close in time.
    """
    host, _, port = endpoint.rpartition(":")
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(text)
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if "/tests/security/" in str(item.path):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.processes)
