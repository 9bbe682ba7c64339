"""Jobs for measuring: Redis, coordinator, pservers and driven workers, as the launcher's.

A ``TrainingJob`` stays warm between its windows, and its workers then only wait for the
next line of their input. So several jobs, and one process without a job, can be measured
in turns on one machine, and what else the machine does disturbs all of them alike.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delay_proxy import DelayProxy
from paramfleet_shared.clock import SystemClock
from paramfleet_shared.config import read_environment
from paramfleet_shared.discovery.embedded import EmbeddedRedis
from paramfleet_worker.core.environment import runtime_environment
from peer.children import Child, start_child

__all__ = ["WORK", "JobShape", "TrainingJob", "free_port"]

WORK = Path(__file__).parent / "work"
"""Folder of the workloads."""

_NUMBERS = itertools.count(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShape:
    """What a job trains, in which mode, and how many processes do it."""

    script: str
    """A workload of ``WORK``."""
    mode: str
    """``single`` is one process and no job."""
    arguments: tuple[str, ...] = ()
    """More of the script's options."""
    workers: int = 2
    servers: int = 1
    delay_s: float = 0.0
    """One way, between every worker and every pserver."""
    jitter_s: float = 0.0
    through_proxy: bool = False
    """Whether the bytes go through the delaying proxy though the delay is 0."""


class TrainingJob:
    """The processes of one job.

    Args:
        shape: What to start.
        stack: Ends what was started.
        folder: Gets the logs.
    """

    def __init__(self, shape: JobShape, stack: AsyncExitStack, folder: Path) -> None:
        self.shape = shape
        self._stack = stack
        self._name = f"job{next(_NUMBERS)}"
        self._folder = folder / self._name
        self._folder.mkdir()
        self._servers: list[Child] = []
        self._workers: list[Child] = []
        self._proxies: list[DelayProxy] = []

    async def start(self, *, warm_steps: int) -> None:
        """Start every process, and let the workers train until they are warm.

        Raises:
            ChildFailedError: if one doesn't start.
        """
        arguments = (f"--mode={self.shape.mode}", "--driven", *self.shape.arguments)
        script = [str(WORK / f"{self.shape.script}.py"), *arguments]
        if self.shape.mode == "single":
            self._workers = [await self._start("worker0", script)]
        else:
            await self._start_job(script)
        await self._ask("warm", steps=warm_steps)

    async def window(self, **length: float) -> dict[str, float]:
        """Run a window of so many ``steps``, or of about so many ``seconds``.

        Returns:
            The job's rate and steps, and ``bytes_per_sample`` where proxies count them.
        """
        before = self.num_bytes
        figures: dict[str, float] = (await self._ask("window", **length))[0]
        samples = figures["samples_per_s"] * figures["seconds"]
        if self._proxies and samples:
            figures["bytes_per_sample"] = (self.num_bytes - before) / samples
        return figures

    async def quality(self) -> dict[str, float]:
        """Return how well the model has learned."""
        found: dict[str, float] = (await self._ask("quality"))[0]
        return found

    async def end(self) -> None:
        """Let the workers finish; the others then end by themselves."""
        async with asyncio.TaskGroup() as group:
            for child in (*self._workers, *self._servers):
                group.create_task(child.end())

    @property
    def num_bytes(self) -> int:
        """Bytes that the proxies have carried, both ways."""
        return sum(proxy.num_bytes for proxy in self._proxies)

    @property
    def pids(self) -> dict[str, list[int]]:
        """Process ids of ``servers`` and ``workers``."""
        return {
            "servers": [child.pid for child in self._servers],
            "workers": [child.pid for child in self._workers],
        }

    async def _start_job(self, script: Sequence[str]) -> None:
        redis = EmbeddedRedis(self._folder, clock=SystemClock())
        await redis.start()
        self._stack.callback(redis.stop)
        job = [f"--job={self._name}", f"--redis={redis.url}"]
        sizes = [f"--worker-num={self.shape.workers}", f"--server-num={self.shape.servers}"]
        quiet = ["--log-level=WARNING"]
        await self._start("coordinator", ["-m", "paramfleet_coordinator", *job, *sizes, *quiet])
        for index in range(self.shape.servers):
            command = ["-m", "paramfleet_pserver", *job, *quiet, f"--index={index}"]
            command += await self._endpoint()
            self._servers.append(await self._start(f"pserver{index}", command))
        worker = ["-m", "paramfleet_worker", "worker", *job]
        for index in range(self.shape.workers):
            child = await self._start(f"worker{index}", [*worker, *script])
            self._workers.append(child)

    async def _endpoint(self) -> list[str]:
        """Return a pserver's options of where it listens and where workers find it."""
        if not self.shape.through_proxy and not self.shape.delay_s:
            return []
        port = free_port()
        proxy = DelayProxy(port, delay_s=self.shape.delay_s, jitter_s=self.shape.jitter_s)
        self._proxies.append(await self._stack.enter_async_context(proxy))
        return [f"--port={port}", f"--advertise={proxy.endpoint}"]

    async def _start(self, name: str, arguments: Sequence[str]) -> Child:
        inherited = read_environment()
        added = runtime_environment(inherited, num_cores=os.cpu_count() or 1, num_local_roles=2)
        environment = {**inherited, **added, "OMP_NUM_THREADS": "1"}
        child = await start_child(name, arguments, environment, self._folder)
        self._stack.callback(child.kill)  # for the end after an error
        return child

    async def _ask(self, do: str, **arguments: Any) -> list[Any]:
        """Give all workers the same command at once."""
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(worker.ask(do, **arguments)) for worker in self._workers
            ]
        return [answer.result() for answer in answers]


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
