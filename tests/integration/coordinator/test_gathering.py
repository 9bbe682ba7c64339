"""A job for as many members as come, on a real Redis."""

import asyncio
from typing import Any

import aiohttp
import pytest

from paramfleet_shared.discovery.errors import JobFullError, JobSizeError
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

OPEN = {"worker_num": 0, "server_num": 0, "settle_s": 0.6}


async def crowd(job: Any, *, workers: int, pservers: int) -> tuple[list[Any], list[Any]]:
    """Let members without an index come at once."""
    roles = ["worker"] * workers + ["pserver"] * pservers
    parts = await asyncio.gather(*(job.join(role) for role in roles))
    return list(parts[:workers]), list(parts[workers:])


async def until_come(job: Any, num: int) -> None:
    """Return when the coordinator says that so many workers have come."""
    store = RedisStore(job.common["redis"], clock=SystemClock(), timeout_s=2.0)
    async with asyncio.timeout(LATE_S), aiohttp.ClientSession() as http:
        while True:
            coordinator = await Registry(store, job=job.common["job"]).find_coordinator()
            if coordinator is not None:
                async with http.get(
                    f"http://{coordinator.admin}/status", headers=job.heads
                ) as answer:
                    if (await answer.json())["gathering"] == {"worker": num}:
                        break
            await asyncio.sleep(0.02)
    await store.close()


async def test_everybody_who_comes_has_a_place_and_is_told_how_many_there_are(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(**OPEN)
        workers, pservers = await crowd(job, workers=3, pservers=2)
        placement = await workers[0].session.wait_placement()
        await asyncio.gather(*(w.session.barrier("start") for w in workers))

        sessions = [part.session for part in [*workers, *pservers]]
        assert sorted(w.session.member.index for w in workers) == [0, 1, 2]
        assert sorted(p.session.member.index for p in pservers) == [0, 1]
        assert {session.server_num for session in sessions} == {2}
        assert {w.session.worker_num for w in workers} == {3}
        assert len(placement.endpoints) == 2


async def test_who_comes_too_late_is_refused_unless_workers_may_come_and_go(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(elastic=True, **OPEN)
        workers, _ = await crowd(job, workers=1, pservers=1)
        await workers[0].session.barrier("start")

        with pytest.raises(JobFullError):
            await job.join("pserver")
        late = await job.join("worker")

        assert late.session.member.index == 1
        assert late.session.late


async def test_a_coordinator_that_is_started_again_keeps_the_sizes(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(**OPEN)
        workers, pservers = await crowd(job, workers=2, pservers=1)
        await asyncio.gather(*(w.session.barrier("start") for w in workers))
        first.cancel()
        await asyncio.wait([first])

        wrong = job.coordinator(worker_num=3, server_num=1)
        assert isinstance(await wrong, JobSizeError)
        second = job.coordinator(**OPEN)
        await asyncio.gather(*(w.session.barrier("epoch") for w in workers))
        await asyncio.gather(*(w.session.mark_done() for w in workers))
        ends = [await part.ends_with() for part in [*workers, *pservers]]
        for part in [*workers, *pservers]:
            await part.session.leave()

        assert ends == [None] * 3
        assert await second == 0


async def test_workers_that_gather_outlast_the_coordinator(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(**{**OPEN, "settle_s": 60.0, "server_num": 1})
        (pserver,) = (await crowd(job, workers=0, pservers=1))[1]
        async with asyncio.TaskGroup() as group:
            joining = [group.create_task(job.join("worker")) for _ in range(2)]
            await until_come(job, 2)
            first.cancel()
            await asyncio.wait([first])
            job.coordinator(**{**OPEN, "server_num": 1})
        workers = [each.result() for each in joining]

        assert {w.session.worker_num for w in workers} == {2}
        assert pserver.session.server_num == 1
