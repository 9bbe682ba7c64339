"""A job whose groups are planned, on one event loop: a real registry, processes, a worker."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from tests.integration.pserver.following import CLOCK, FLAT, NUM_SHARDS, ROWS, Worker, until

from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author
from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.hosting.group import GroupParts
from paramfleet_pserver.hosting.host import Host
from paramfleet_pserver.tables.blocks import NewShard, in_memory
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.discovery.records import JobSizes
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, field_of
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.faults import Verdict
from paramfleet_shared.net.rpc.server import RpcServer
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

__all__ = ["LostAnswers", "PlannedJob", "Process", "planned_job"]

LOOK_S = 0.05


class LostAnswers:
    """A ``FaultHook`` that loses answers or requests of one operation while a test wants it."""

    def __init__(self) -> None:
        self.of = ""
        self.num_lost = 0
        self.unheard = ""
        """Of which no request comes."""
        self.num_unheard = 0

    def on_request(self, op: str) -> Verdict:
        if op != self.unheard:
            return Verdict.DELIVER
        self.num_unheard += 1
        return Verdict.DROP

    async def on_hold(self, op: str) -> Verdict:
        del op
        return Verdict.DELIVER

    async def on_reply(self, op: str) -> Verdict:
        if op != self.of:
            return Verdict.DELIVER
        self.num_lost += 1
        return Verdict.DROP


class Process:
    """One process that hosts groups."""

    def __init__(self, parts: GroupParts, host: Host) -> None:
        self.parts = parts
        self.host = host
        self.id = host.session.planning.process
        self.failure: FleetError | None = None
        self._living = asyncio.get_running_loop().create_task(self._live())
        self._silenced: list[asyncio.Task[Any]] = []

    async def _live(self) -> None:
        try:
            await self.host.live()
        except FleetError as error:
            self.failure = error

    def fall_silent(self) -> None:
        """Do nothing more, as a process that was killed; its place goes with ``close``."""
        silencing = self._fall_silent()
        self._silenced.append(asyncio.get_running_loop().create_task(silencing))

    async def _fall_silent(self) -> None:
        for part in self.host._all:
            if part._copies.following is not None:  # it has no last words
                await part._copies.following.follower.close()
        self._living.cancel()
        for part in self.host._all:
            if part._living is not None:
                part._living.cancel()
            if part.hosted is not None:
                await part.hosted.server.close()

    async def close(self) -> None:
        self._living.cancel()
        await asyncio.wait((self._living, *self._silenced))
        await self.host.close()
        await self.parts.owners.close()


class PlannedJob:
    """A coordinator's decisions behind a server of the test, and who has joined."""

    def __init__(
        self,
        redis_url: str,
        name: str,
        *,
        lease_ttl_s: float,
        data_dir: str,
        join_timeout_s: float = 1.0,
        replicas: int = 1,
        new_shard: NewShard = in_memory,
        owner_threads: Sequence[int] = (1, 1),
    ) -> None:
        self.name = name
        self._new_shard = new_shard
        self._owner_threads = owner_threads
        self._kept: dict[str, Any] = {}
        if data_dir:
            self._kept = {"data_dir": data_dir, "durability": "async"}
        self.common: dict[str, Any] = {
            "redis": redis_url,
            "job": name,
            "secret": SECRET,
            "lease_ttl_s": lease_ttl_s,
            "lease_renew_s": 0.1,
            "join_timeout_s": join_timeout_s,
            "call_timeout_s": 3.0,
        }
        self.sizes = JobSizes(
            worker_num=1,
            server_num=2,
            num_shards=NUM_SHARDS,
            server_processes=2,
            replicas=replicas,
        )
        rules = JobRules(
            lease_ttl_s=lease_ttl_s,
            lease_renew_s=0.1,
            start_timeout_s=600.0,
            replica_grace_s=0.5,
        )
        self.job = Job(self.sizes, rules=rules, run_id=7)
        self.answers = LostAnswers()
        self.processes: list[Process] = []
        self._session: JobSession | None = None
        self._pservers: PServers | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        self._store = RedisStore(self.common["redis"], clock=CLOCK, timeout_s=2.0)
        record = CoordinatorRecord(endpoint="", admin="", host="here", pid=os.getpid())
        registry = JobRegistry(self._store, job=self.name, record=record, lease_ttl_s=60.0)
        assert await registry.try_claim() is None
        registry.epoch = 1
        await registry.write_job(self.job.record)
        routes = RpcRoutes(
            self.job,
            registry,
            gathering=Gathering(self.sizes, settle_s=0.0),
            name=self.name,
            clock=CLOCK,
            tick_s=LOOK_S,
        )
        self._server = RpcServer(
            routes.handlers(),
            name="coordinator",
            clock=CLOCK,
            secret=secret_for(self.name),
            faults=self.answers,
        )
        port = await self._server.start("127.0.0.1")
        registry.announce(endpoint=f"127.0.0.1:{port}", admin="")
        self._begin(self._watch(routes))

    async def _watch(self, routes: RpcRoutes) -> None:
        while True:
            await routes.look()
            await asyncio.sleep(LOOK_S)

    async def add(self, index: int) -> Process:
        """Have another process join."""
        threads = self._owner_threads[index]
        settings = PServerSettings(
            **self.common, **self._kept, hosting="planned", index=index, owner_threads=threads
        )
        parts = GroupParts(
            settings=settings,
            clock=CLOCK,
            owners=Owners(threads),
            service=ServiceTimes(CLOCK.monotonic),
            tracing=None,
            new_shard=self._new_shard,
        )
        process = Process(parts, await Host.join(parts, admin=""))
        self.processes.append(process)
        return process

    async def worker(self, mode: str = "async") -> Worker:
        """Have the one worker join, and declare the tables."""
        session = self._session = await JobSession.join(
            JobSettings(**self.common), role="worker", index=0, endpoint="", admin="",
            clock=CLOCK,
        )  # fmt: skip
        self._begin(session.run())
        author = Author(rank=0, incarnation=session.member.incarnation)

        async def locate() -> Placement:
            placement = await session.read_placement()
            assert placement is not None
            return placement

        pservers = self._pservers = PServers(
            await self._placed(),
            author=author,
            locate=locate,
            clock=CLOCK,
            call_timeout_s=LATE_S,
            step_timeout_s=LATE_S,
            secret=secret_for(self.name),
        )
        fields = {
            **author.fields(),
            "tables": [ROWS.to_wire(), FLAT.to_wire()],
            "mode": mode,
            "worker_num": 1,
            "max_staleness": None,
            "async_rate": "full",
        }
        await pservers.call_all("declare", fields, timeout_s=LATE_S)
        return Worker(pservers, author, mode)

    async def note_incarnation(self, role: str, index: int, incarnation: int) -> None:
        """Have the registry name an incarnation as the newest of a place."""
        key = Keys(self.name).of_job("lives")
        await self._store.command("HSET", key, field_of(role, index), str(incarnation))

    async def _placed(self) -> Placement:
        await until(lambda: self.job.placement)
        assert self.job.placement is not None
        return self.job.placement

    def plan(self, group: int) -> GroupPlan:
        """Return what is planned of a group."""
        assert self.job.hosting is not None
        return self.job.hosting.planner.plan.of(group)

    def move(self, group: int, target: ProcessId) -> None:
        """Plan that a group goes to another process."""
        self._change(group, target=target)

    def stay(self, group: int) -> None:
        """Plan that a group goes to nobody."""
        self._change(group, target=None)

    def give(self, group: int, owner: ProcessId) -> None:
        """Have the plan say that a group is another process's, without its doing."""
        self._change(group, owner=owner, follower=None)

    def begin_anew(self, group: int, owner: ProcessId) -> None:
        """Plan that a process begins a group, as if its owner, which was silent, were dead."""
        self._change(group, owner=owner, since_term=0)

    def _change(self, group: int, **changes: Any) -> None:
        assert self.job.hosting is not None
        planner = self.job.hosting.planner
        plan = planner.plan.with_group(group, **changes)
        planner.resume(replace(plan, version=plan.version + 1))

    def _begin(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def close(self) -> None:
        self.answers.of = ""
        if self._pservers is not None:
            await self._pservers.close()
        for process in self.processes:
            await process.close()
        if self._session is not None:
            await self._session.leave()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, FleetError):
                await task
        await self._server.close()
        await self._store.close()


@asynccontextmanager
async def planned_job(
    redis_url: str, name: str, *, lease_ttl_s: float, data_dir: str = "", **options: Any
) -> AsyncIterator[PlannedJob]:
    """Run a job of two groups and two processes, with one data folder.

    Each group has a follower, unless there are no replicas.
    """
    job = PlannedJob(redis_url, name, lease_ttl_s=lease_ttl_s, data_dir=data_dir, **options)
    await job.start()
    try:
        for index in range(2):
            await job.add(index)
        yield job
    finally:
        await job.close()
