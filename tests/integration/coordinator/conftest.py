"""A job on one event loop: a real coordinator, real sessions, a real Redis."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.prepared.plugin import pytest_runtest_protocol, pytest_sessionfinish

from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.settings.config import JobSettings, Resolved, resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]

FAST = {
    "secret": SECRET,
    "lease_ttl_s": 1.2,
    "lease_renew_s": 0.1,
    "join_timeout_s": 60.0,
    "barrier_timeout_s": 60.0,
    "call_timeout_s": 3.0,
    "outage_grace_s": 60.0,
}
"""Times short enough for tests; those of whom nobody waits for the end are long enough for a
coordinator that starts as a process of a busy machine."""


@pytest.fixture(autouse=True)
def nothing_left_of_the_dead() -> Iterator[None]:
    """Collect the sockets of members that died without a word, so that no later test does."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass
class Part:
    """A member on the stage: its session, and the task that renews its lease."""

    session: JobSession
    beating: asyncio.Task[FleetError | None]

    async def ends_with(self) -> FleetError | None:
        """Return what ended the heartbeats; None when the job finished."""
        return await self.beating

    async def die(self) -> None:
        """Stop without a word, as a killed process."""
        self.beating.cancel()
        await asyncio.wait([self.beating])


OWN_RUN = -1
"""For the run that the members before had joined."""


class Stage:
    """Starts coordinators and members of one job, and ends them all with the test."""

    def __init__(self, group: asyncio.TaskGroup, *, redis: str, job: str) -> None:
        self._group = group
        self._members: list[Part] = []
        self.run_id = 0
        """Of whom has joined last."""
        self.common: dict[str, Any] = {**FAST, "redis": redis, "job": job}
        token = JobSecret(SECRET, job).token("admin")
        self.heads = {"Authorization": f"Bearer {token}"}

    def settings(self, **changes: Any) -> JobSettings:
        return JobSettings(**{**self.common, **changes})

    def coordinator(
        self, *, is_again: bool = False, **changes: Any
    ) -> asyncio.Task[int | FleetError]:
        """Start a coordinator; the task's result is its exit status or error."""
        resolved: Resolved[CoordinatorSettings] = resolve(
            CoordinatorSettings,
            section="coordinator",
            arguments={**self.common, "finish_grace_s": 3.0, **changes},
            environment={},
        )

        async def serve() -> int | FleetError:
            try:
                made = Coordinator(resolved, clock=SystemClock(), is_again=is_again)
                return await made.serve()
            except FleetError as error:
                return error

        return self._group.create_task(serve())

    async def join(
        self,
        role: str,
        index: int | None = None,
        *,
        durable: bool = False,
        holds_run: int = 0,
        port: int = 7000,
        **changes: Any,
    ) -> Part:
        """Start a member, and its heartbeats."""
        session = await JobSession.join(
            self.settings(**changes),
            role=role,
            index=index,
            endpoint=f"127.0.0.1:{port + (index or 0)}" if role == "pserver" else "",
            admin="",
            clock=SystemClock(),
            durable=durable,
            holds_run=self.run_id if holds_run == OWN_RUN else holds_run,
        )
        self.run_id = session.run_id

        async def beat() -> FleetError | None:
            try:
                await session.run()
            except FleetError as error:
                return error
            return None

        part = Part(session, self._group.create_task(beat()))
        self._members.append(part)
        return part

    async def crew(self, *, workers: int, pservers: int) -> tuple[list[Part], list[Part]]:
        """Start all members at once."""
        joining = [self.join("worker", i) for i in range(workers)]
        joining += [self.join("pserver", i) for i in range(pservers)]
        parts = await asyncio.gather(*joining)
        return list(parts[:workers]), list(parts[workers:])

    async def standing(self, barrier: str, count: int) -> None:
        """Return when ``count`` workers stand at the first use of a barrier."""
        store = RedisStore(self.common["redis"], clock=SystemClock(), timeout_s=2.0)
        key = Keys(self.common["job"]).of_run(1, f"barrier:1:{barrier}")[-1]
        try:
            async with asyncio.timeout(LATE_S):
                while True:
                    if len(await store.command("SMEMBERS", key)) >= count:
                        return
                    await asyncio.sleep(0.02)
        finally:
            await store.close()

    async def standing_at_epoch(self, epoch: int) -> None:
        """Return when every member that lives has said again that it is in a run."""
        store = RedisStore(self.common["redis"], clock=SystemClock(), timeout_s=2.0)
        key = Keys(self.common["job"]).of_run(epoch)[4]
        try:
            async with asyncio.timeout(LATE_S):
                while True:
                    if len(await store.command("HGETALL", key)) >= len(self._members):
                        return
                    await asyncio.sleep(0.02)
        finally:
            await store.close()

    async def sweep(self) -> None:
        for part in self._members:
            part.beating.cancel()
        await asyncio.gather(*(part.session.leave() for part in self._members))


StageFactory = Callable[[str, str], AbstractAsyncContextManager[Stage]]


@asynccontextmanager
async def _stage(redis: str, job: str) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as group:
        stage = Stage(group, redis=redis, job=job)
        try:
            yield stage
        finally:
            await stage.sweep()
            for task in group._tasks:
                if not task.cancelling():  # a second cancellation would end its clean-up
                    task.cancel()


@pytest.fixture
def stage() -> StageFactory:
    return _stage
