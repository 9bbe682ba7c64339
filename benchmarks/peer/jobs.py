"""Jobs and peers as processes: what the benchmarks start, ask, and end."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cores import Role, cores_of, pin_process
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.net.secret import new_secret
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.tables.kernels.basics.parts import ALL_PARTS
from paramfleet_shared.tables.kernels.basics.readiness import is_cold
from paramfleet_worker.core.environment import runtime_environment
from peer.children import Child, start_child
from peer.work import Work
from ports import free_port

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
    if not any(map(is_cold, ALL_PARTS)):
        return
    command = [sys.executable, "-m", "paramfleet_shared.tables.warm", "all"]
    nothing = subprocess.DEVNULL
    subprocess.run(tied(command), check=True, stdout=nothing, stderr=nothing)


def environments() -> Environments:
    """Return the environment as it is, and with what our launcher adds."""
    inherited = read_environment()
    added = runtime_environment(inherited, num_cores=os.cpu_count() or 1, num_local_roles=2)
    secret = {"PARAMFLEET_SECRET": new_secret()}
    return Environments({**secret, **inherited, **added}, inherited)


class Job(NamedTuple):
    """A job of ours: what workers need to join it, and its processes."""

    name: str
    redis: str
    coordinator: Child
    pservers: list[Child]
    admin_ports: list[int]
    """Of the pservers, on loopback."""

    @property
    def pids(self) -> list[int]:
        """Return the process ids of coordinator and pservers."""
        return [self.coordinator.pid, *(pserver.pid for pserver in self.pservers)]

    @property
    def address(self) -> dict[str, str]:
        """Return the arguments by which a client joins."""
        return {"redis": self.redis, "job": self.name}


class Processes:
    """Starts processes; the stack ends them.

    Args:
        stack: Ends what was started, whatever happens.
        logs: Folder of the processes' logs.
        pinned: Whether servers and clients have cores of their own.
    """

    def __init__(self, stack: AsyncExitStack, logs: Path, *, pinned: bool = False) -> None:
        self._stack = stack
        self._logs = logs
        self._pinned = pinned
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
        if self._pinned and redis.pid is not None:
            pin_process(redis.pid, cores_of("server"))
        return redis

    async def start_job(
        self,
        name: str,
        *,
        servers: int = 1,
        workers: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> Job:
        """Start a job as the launcher does: registry, coordinator, pservers; no worker yet.

        Args:
            name: The job's.
            servers: How many pservers.
            workers: How many workers it waits for.
            settings: What pservers find in their environment beside the launcher's.
        """
        if self._registry is None:
            await asyncio.to_thread(compile_kernels)
            self._registry = await self.start_redis("registry")
        job = [f"--job={name}", f"--redis={self._registry.url}", "--log-level=WARNING"]
        sizes = [f"--worker-num={workers}", f"--server-num={servers}"]
        ours = {**self.environments.ours, **(settings or {})}
        coordinator = await self.start(
            f"{name}-coordinator",
            ["-m", "paramfleet_coordinator", *job, *sizes],
            ours,
            "server",
        )
        ports = [free_port() for _ in range(servers)]
        pservers = [
            await self.start(
                f"{name}-pserver",
                ["-m", "paramfleet_pserver", *job, f"--admin-port={port}"],
                {**ours, "PARAMFLEET_ADMIN_OPEN_READING": "true"},
                "server",
            )
            for port in ports
        ]
        return Job(name, self._registry.url, coordinator, pservers, ports)

    async def serve(
        self, module: str, work: Work, environment: Mapping[str, str], **options: Any
    ) -> tuple[Child, dict[str, Any]]:
        """Start a peer's server; return it, and the address that its client needs.

        Args:
            module: Of ``peer``.
            work: What a step is.
            environment: All of it.
            options: What server and client are told beside the port.
        """
        address = {"port": free_port(), **options}
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
        self, name: str, arguments: list[str], environment: Mapping[str, str], role: Role
    ) -> Child:
        """Start a process of Python that is killed at the latest when the stack ends.

        Args:
            name: Of its log, and for errors.
            arguments: Of the interpreter.
            environment: All of it.
            role: Which cores it gets, if processes are pinned.
        """
        self._num_started += 1
        name = f"{self._num_started}-{name}"
        cores = cores_of(role) if self._pinned else ()
        child = await start_child(name, arguments, environment, self._logs, cores)
        self._stack.push_async_callback(child.kill)
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
        role: Role = "server" if act == "serve" else "client"
        return await self.start(f"{module}-{act}", arguments, environment, role)
