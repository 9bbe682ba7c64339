"""Jobs and peers as processes: what the benchmarks start, ask, and end."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.config import read_environment
from paramfleet_shared.discovery.embedded import EmbeddedRedis
from paramfleet_shared.processes.keeping import tied
from paramfleet_shared.secret import new_secret
from paramfleet_shared.tables.readiness import is_cold
from paramfleet_worker.core.environment import runtime_environment
from peer.children import Child, start_child
from peer.work import Work

__all__ = ["Environments", "Job", "Processes", "compile_kernels", "environments"]


class Environments(NamedTuple):
    """What processes find in their environment."""

    ours: dict[str, str]
    """With the settings that ``paramfleet launch`` adds."""
    peers: dict[str, str]
    """As it is."""

    def settings(self) -> dict[str, dict[str, str]]:
        """Return what differs, or might: glibc's settings and OpenMP's."""
        names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS")
        return {
            side: {name: environment[name] for name in names if name in environment}
            for side, environment in self._asdict().items()
        }


def compile_kernels() -> None:
    """Compile what is not in the disk's cache yet: a cold server's first answer takes minutes.

    Raises:
        CalledProcessError: if that fails.
    """
    if not is_cold():
        return
    command = [sys.executable, "-m", "paramfleet_shared.tables.warm"]
    nothing = subprocess.DEVNULL
    subprocess.run(tied(command), check=True, stdout=nothing, stderr=nothing)


def environments() -> Environments:
    """Return the environment as it is, and with what our launcher adds."""
    inherited = read_environment()
    added = runtime_environment(inherited, num_cores=os.cpu_count() or 1, num_local_roles=2)
    secret = {"PARAMFLEET_SECRET": new_secret()}
    return Environments({**secret, **inherited, **added}, inherited)


class Job(NamedTuple):
    """A job of ours: what workers need to join it, and its pservers."""

    name: str
    redis: str
    pservers: list[Child]
    admin_ports: list[int]
    """Of the pservers, on loopback."""

    @property
    def address(self) -> dict[str, str]:
        """Return the arguments by which a client joins."""
        return {"redis": self.redis, "job": self.name}


class Processes:
    """Starts processes; the stack ends them.

    Args:
        stack: Ends what was started, whatever happens.
        logs: Folder of the processes' logs.
    """

    def __init__(self, stack: AsyncExitStack, logs: Path) -> None:
        self._stack = stack
        self._logs = logs
        self._registry: EmbeddedRedis | None = None
        self._num_started = 0
        self.environments = environments()

    async def start_redis(self, name: str, *, bind: str | None = None) -> EmbeddedRedis:
        """Start a redis-server; on a Unix socket, or on a port of ``bind``."""
        folder = self._logs / name
        folder.mkdir()
        redis = EmbeddedRedis(folder, clock=SystemClock(), bind=bind)
        await redis.start()
        self._stack.callback(redis.stop)
        return redis

    async def start_job(self, name: str, *, servers: int = 1, workers: int = 1) -> Job:
        """Start a job as the launcher does: registry, coordinator, pservers; no worker yet."""
        if self._registry is None:
            await asyncio.to_thread(compile_kernels)
            self._registry = await self.start_redis("registry")
        job = [f"--job={name}", f"--redis={self._registry.url}", "--log-level=WARNING"]
        sizes = [f"--worker-num={workers}", f"--server-num={servers}"]
        ours = self.environments.ours
        await self.start(
            f"{name}-coordinator", ["-m", "paramfleet_coordinator", *job, *sizes], ours
        )
        ports = [_free_port() for _ in range(servers)]
        pservers = [
            await self.start(
                f"{name}-pserver",
                ["-m", "paramfleet_pserver", *job, f"--admin-port={port}"],
                {**ours, "PARAMFLEET_ADMIN_OPEN_READING": "true"},
            )
            for port in ports
        ]
        return Job(name, self._registry.url, pservers, ports)

    async def serve(
        self, module: str, work: Work, environment: Mapping[str, str]
    ) -> tuple[Child, dict[str, Any]]:
        """Start a peer's server; return it, and the address that its client needs."""
        address = {"port": _free_port()}
        return await self._module("serve", module, work, address, environment), address

    async def drive(
        self,
        module: str,
        work: Work,
        address: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> Child:
        """Start a client; it obeys commands until it is ended."""
        return await self._module("drive", module, work, address, environment)

    async def start(
        self, name: str, arguments: list[str], environment: Mapping[str, str]
    ) -> Child:
        """Start a process of Python that is killed at the latest when the stack ends."""
        self._num_started += 1
        name = f"{self._num_started}-{name}"
        child = await start_child(name, arguments, environment, self._logs)
        self._stack.callback(child.kill)
        return child

    async def _module(
        self,
        act: str,
        module: str,
        work: Work,
        address: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> Child:
        facts = [json.dumps(asdict(work)), json.dumps(address)]
        arguments = ["-m", "peer.process", act, module, *facts]
        return await self.start(f"{module}-{act}", arguments, environment)


def _free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
