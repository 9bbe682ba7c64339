"""Jobs for measuring: Redis, coordinator, pservers and driven workers, as the launcher's.

A ``TrainingJob`` stays warm between its windows, and its workers then only wait for the
next line of their input. So several jobs, and one process without a job, can be measured
in turns on one machine, and what else the machine does disturbs all of them alike.
"""

import asyncio
import itertools
import json
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cores import Cores, cores_of_worker
from delay_proxy import DelayProxy
from nursery.client import Fork, Nursery
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.system.clock import SystemClock
from peer.children import cpu_s, disk_bytes, num_switches
from ports import free_port
from rounds import Turn
from trees import HERE, Tree

__all__ = [
    "JobShape",
    "Saved",
    "TrainingJob",
    "run_jobs",
    "training_jobs",
    "turn_of",
]

T = TypeVar("T")

_NUMBERS = itertools.count(1)

SAVED_WITHIN_S = 120.0
"""Longest wait for snapshots to end, on however busy a machine."""

_FIRST_RUN = 1
"""The epoch of a job that runs for the first time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShape:
    """What a job trains, in which mode, and how many processes do it."""

    script: str
    """A workload: the name of a module in ``work``."""
    mode: str
    """``single`` is one process and no job."""
    arguments: tuple[str, ...] = ()
    """More of the script's options."""
    workers: int = 2
    servers: int = 1
    distant: bool = False
    """Whether a wire that can delay is between every worker and every pserver."""
    pinned: bool = True
    """Whether each worker has a core; beside a system whose workers have none it is False."""
    tree: Tree = HERE
    """Whose code its processes run."""
    durability: str = "none"
    """How its pservers keep the training on a disk, if they do."""
    replicas: int = 0
    """How many other pservers follow each."""


class Saved(NamedTuple):
    """A snapshot that a pserver has taken; times are in seconds since 1970."""

    began: float
    ended: float


class TrainingJob:
    """The processes of one job. ``training_jobs`` makes and ends them.

    Args:
        shape: What to start.
        nursery: Forks the processes.
        redis: URL of the registry.
        stack: Closes the wires.
        data: Folder for what pservers keep.
    """

    def __init__(
        self,
        shape: JobShape,
        nursery: Nursery,
        redis: str,
        stack: AsyncExitStack,
        data: Path,
    ) -> None:
        self.shape = shape
        self._nursery = nursery
        self.redis = redis
        self._stack = stack
        self._data = data
        self.name = f"job{next(_NUMBERS)}"
        self._workers: list[Fork] = []
        self._servers: list[Fork] = []
        self._coordinators: list[Fork] = []
        self._proxies: list[DelayProxy] = []

    async def start(self, *, warm_steps: int) -> None:
        """Start every process, and let the workers train until they are warm.

        Raises:
            ChildFailedError: if one doesn't start.
        """
        arguments = (f"--mode={self.shape.mode}", "--driven", *self.shape.arguments)
        work = self.shape.tree.benchmarks / "work"
        script = [str(work / f"{self.shape.script}.py"), *arguments]
        if self.shape.mode == "single":
            self._workers = [await self._start("worker0", script, self._cores(0))]
        else:
            await self._start_job(script)
        await self._ask("warm", steps=warm_steps)
        if self.shape.durability != "none":
            await self._wait_saved()

    async def window(self, **length: float) -> dict[str, float]:
        """Run a window of so many ``steps``, or of about so many ``seconds``.

        Returns:
            The job's rate, seconds and steps; of its workers and of its pservers the
            processor time and how often a thread waited, ``worker_cpu_s``, ``server_cpu_s``,
            ``worker_waits`` and ``server_waits``, and ``cpu_s`` of all, the coordinator too; of
            a distant job also ``bytes``, both ways, and of one that keeps its training
            ``disk_bytes``. That one's snapshots are ended before this returns.

        Raises:
            ChildFailedError: if a worker fails.
        """
        before, use_before = self._num_bytes, self._use()
        figures: dict[str, float] = (await self._ask("window", **length))[0]
        if self.shape.durability != "none":
            await self._wait_saved()
        figures |= {name: used - use_before[name] for name, used in self._use().items()}
        figures["cpu_s"] = sum(
            figures[f"{role}_cpu_s"] for role in ("worker", "server", "coordinator")
        )
        if self.shape.distant:
            figures["bytes"] = self._num_bytes - before
        return figures

    def delay(self, delay_s: float) -> None:
        """Let every byte between workers and pservers take so long from now on, one way."""
        for proxy in self._proxies:
            proxy.delay_s = delay_s

    async def quality(self) -> dict[str, float]:
        """Return how well the model has learned."""
        found: dict[str, float] = (await self._ask("quality"))[0]
        return found

    async def start_beside(
        self, name: str, arguments: Sequence[str], **environment: str
    ) -> Fork:
        """Start another process that has the job's secret; it ends with the job's.

        Args:
            name: Of its log.
            arguments: As of Python.
            environment: Variables.

        Raises:
            ChildFailedError: if it doesn't start.
        """
        return await self._start(name, arguments, (), **environment)

    async def end(self) -> None:
        """Let the workers finish; the others then end by themselves."""
        async with asyncio.TaskGroup() as group:
            for fork in (*self._workers, *self._servers):
                group.create_task(fork.end())

    @property
    def pids(self) -> dict[str, list[int]]:
        """Process ids of ``servers`` and ``workers``."""
        return {
            "servers": [fork.pid for fork in self._servers],
            "workers": [fork.pid for fork in self._workers],
        }

    def snapshots(self) -> list[Saved]:
        """Return the snapshots that the pservers of a durable job have taken so far."""
        lines = (line for fork in self._servers for line in fork.log.open(encoding="utf-8"))
        records = (json.loads(line) for line in lines if '"pserver.snapshot"' in line)
        ends = ((datetime.fromisoformat(r["time"]).timestamp(), r) for r in records)
        return [Saved(end - record["fields"]["seconds"], end) for end, record in ends]

    @property
    def snapshot_bytes(self) -> int:
        """Return the bytes of the newest snapshots of all pservers."""
        files = self._data.glob(f"{self.name}/*/*/snapshot-*.state")
        newest = {file.parent: file.stat().st_size for file in sorted(files)}
        return sum(newest.values())

    async def _wait_saved(self) -> None:
        """Wait until no pserver has taken a snapshot for longer than its looks are apart.

        Raises:
            TimeoutError: if that doesn't come.
        """
        quiet = 0
        async with asyncio.timeout(SAVED_WITHIN_S):
            while quiet < 4:
                await asyncio.sleep(0.1)
                is_saving = any(self._data.glob(f"{self.name}/*/*/*.draft"))
                quiet = 0 if is_saving else quiet + 1

    async def num_requests(self) -> dict[str, int]:
        """Return by operation how many requests the pservers have answered so far."""
        store = RedisStore(self.redis, clock=SystemClock(), timeout_s=5.0)
        try:
            facts = await Registry(store, job=self.name).read_facts(_FIRST_RUN, "pserver")
        finally:
            await store.close()
        counts: Counter[str] = Counter()
        for each in facts.values():
            counts.update({op: int(count) for op, (count, _) in each["service"].items()})
        return dict(counts)

    def _use(self) -> dict[str, float]:
        use = {}
        for role, forks in (
            ("worker", self._workers),
            ("server", self._servers),
            ("coordinator", self._coordinators),
        ):
            use[f"{role}_cpu_s"] = sum(cpu_s(fork.pid) for fork in forks)
            use[f"{role}_waits"] = sum(num_switches(fork.pid) for fork in forks)
        if self.shape.durability != "none":
            use["disk_bytes"] = sum(disk_bytes(fork.pid) for fork in self._servers)
        return use

    @property
    def _num_bytes(self) -> int:
        return sum(proxy.num_bytes for proxy in self._proxies)

    async def _start_job(self, script: Sequence[str]) -> None:
        job = [f"--job={self.name}", f"--redis={self.redis}"]
        sizes = [f"--worker-num={self.shape.workers}", f"--server-num={self.shape.servers}"]
        command = ["-m", "paramfleet_coordinator", *job, *sizes, "--log-level=WARNING"]
        if self.shape.replicas:
            planned = f"--server-processes={self.shape.servers}"
            command += [planned, f"--replicas={self.shape.replicas}"]
        self._coordinators = [await self._start("coordinator", command)]
        for index in range(self.shape.servers):
            command = ["-m", "paramfleet_pserver", *job, f"--index={index}"]
            command += [*await self._endpoint(), *self._keeping()]
            command += ["--hosting=planned"] if self.shape.replicas else []
            self._servers.append(await self._start(f"pserver{index}", command))
        for index in range(self.shape.workers):
            role = {
                "TRAINING_ROLE": "TRAINER",
                "PADDLE_TRAINERS_NUM": str(self.shape.workers),
                "PADDLE_TRAINER_ID": str(index),
                "PARAMFLEET_JOB": self.name,
                "PARAMFLEET_REDIS": self.redis,
            }
            name, cores = f"worker{index}", self._cores(index)
            self._workers.append(await self._start(name, script, cores, **role))

    def _keeping(self) -> list[str]:
        """Return a pserver's options of what it keeps, and of what it logs of that."""
        if self.shape.durability == "none":
            return ["--log-level=WARNING"]
        keeps = [f"--durability={self.shape.durability}", f"--data-dir={self._data}"]
        return [*keeps, "--log-level=INFO", "--log-format=json"]

    async def _endpoint(self) -> list[str]:
        """Return a pserver's options of where it listens and where workers find it."""
        if not self.shape.distant:
            return []
        port = free_port()
        proxy = DelayProxy(port, delay_s=0.0)
        self._proxies.append(await self._stack.enter_async_context(proxy))
        return [f"--port={port}", f"--advertise={proxy.endpoint}"]

    def _cores(self, worker: int) -> Cores:
        return cores_of_worker(worker) if self.shape.pinned else ()

    async def _start(
        self, name: str, arguments: Sequence[str], cores: Cores = (), **environment: str
    ) -> Fork:
        full = f"{self.name}-{name}"
        return await self._nursery.start(full, arguments, environment, cores)

    async def _ask(self, do: str, **arguments: Any) -> list[Any]:
        """Give all workers the same command at once."""
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(worker.ask(do, **arguments)) for worker in self._workers
            ]
        return [answer.result() for answer in answers]


def turn_of(window: Mapping[str, float]) -> Turn:
    """Return a window's samples a second, and the processor seconds of a sample."""
    num_samples = window["samples_per_s"] * window["seconds"]
    return Turn(window["samples_per_s"], window["cpu_s"] / num_samples)


@asynccontextmanager
async def training_jobs(
    shapes: Sequence[JobShape], *, warm_steps: int
) -> AsyncIterator[list[TrainingJob]]:
    """Start jobs side by side, and end them.

    Args:
        shapes: What to start.
        warm_steps: Steps that each worker takes before the first window.

    Raises:
        ChildFailedError: if a process doesn't start.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        redis = EmbeddedRedis(folder, clock=SystemClock())
        await redis.start()
        stack.callback(redis.stop)
        nurseries: dict[Tree, Nursery] = {}
        for number, tree in enumerate({shape.tree: None for shape in shapes}):
            own = folder / str(number)
            own.mkdir()
            nurseries[tree] = await stack.enter_async_context(Nursery(own, tree))
        data = folder / "data"
        jobs = [
            TrainingJob(shape, nurseries[shape.tree], _url_for(shape.tree, redis), stack, data)
            for shape in shapes
        ]
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job.start(warm_steps=warm_steps))
        yield jobs
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job.end())


def _url_for(tree: Tree, redis: EmbeddedRedis) -> str:
    """Return the registry's address for a tree: former code needs more rights there."""
    return redis.url if tree == HERE else redis.admin_url


def run_jobs(work: Coroutine[Any, Any, T]) -> T:
    """Run what uses jobs; SIGTERM ends their processes too.

    Raises:
        CancelledError: after SIGTERM.
        ChildFailedError: if a process failed.
    """

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(interruptible())
