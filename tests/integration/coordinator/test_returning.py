"""A durable pserver dies and comes back, with a real coordinator, sessions and Redis."""

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.integration.coordinator.conftest import OWN_RUN

from paramfleet_shared.discovery.errors import FencedError, WrongDataFolderError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

KEEPS = {"durable": True, "holds_run": OWN_RUN, "port": 8000}


async def begin(job: Any) -> tuple[Any, list[Any]]:
    """Have one worker and two durable pservers train; return them."""
    worker, *pservers = await asyncio.gather(
        job.join("worker", 0), *(job.join("pserver", i, durable=True) for i in range(2))
    )
    await worker.session.wait_placement()
    return worker, pservers


async def placed(session: Any, epoch: int) -> Placement:
    """Return the placement when a heartbeat has brought it."""
    async with asyncio.timeout(LATE_S):
        while True:
            placement: Placement | None = session.placement
            if placement is not None and placement.epoch >= epoch:
                return placement
            await asyncio.sleep(0.02)


async def status_of(job: Any) -> dict[str, Any]:
    store = RedisStore(job.common["redis"], clock=SystemClock(), timeout_s=2.0)
    try:
        found = await Registry(store, job=job.common["job"]).find_coordinator()
    finally:
        await store.close()
    assert found is not None
    url = f"http://{found.admin}/api/v1/status"
    async with aiohttp.ClientSession(headers=job.heads) as http, http.get(url) as answer:
        return dict(await answer.json())


async def test_it_gets_its_place_at_once_and_the_members_learn_where_it_is(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(server_num=2)
        worker, pservers = await begin(job)
        first = await worker.session.read_placement()

        again = await job.join("pserver", 1, **KEEPS)
        now = await worker.session.read_placement()

        assert first is not None
        assert (first.terms, worker.session.epoch) == ((1, 1), 1)
        assert again.session.member.incarnation == 2
        assert now == first.with_server(1, endpoint="127.0.0.1:8001", term=2)
        assert await placed(worker.session, 2) == now
        assert await placed(pservers[0].session, 2) == now
        assert isinstance(await pservers[1].ends_with(), FencedError)
        await worker.session.mark_done()
        for part in (worker, pservers[0], again):
            assert await part.ends_with() is None
            await part.session.leave()
        assert await coordinator == 0


@pytest.mark.parametrize("more", [{"holds_run": 7}, {"holds_run": 0}, {"durable": False}])
async def test_another_folder_is_refused_and_the_job_goes_on(
    stage: Any, redis_url: str, job_name: str, more: dict[str, Any]
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(server_num=2)
        worker, pservers = await begin(job)
        await pservers[1].die()

        with pytest.raises(WrongDataFolderError, match="pserver 1 has its training of run "):
            await job.join("pserver", 1, **{**KEEPS, **more})

        await job.join("pserver", 1, **KEEPS)
        assert (await placed(worker.session, 2)).terms == (1, 2)
        assert worker.session.failure() is None


async def test_one_that_died_is_waited_for_and_its_state_is_shown(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(server_num=2, server_return_s=60.0)
        worker, pservers = await begin(job)
        await pservers[0].session.leave()
        await pservers[1].die()

        async with asyncio.timeout(LATE_S):
            while True:
                servers = (await status_of(job))["servers"]
                if all(server["waits_s"] is not None for server in servers):
                    break
                await asyncio.sleep(0.05)
        for index in range(2):
            await job.join("pserver", index, **KEEPS)

        assert [server["alive"] for server in servers] == [False, False]
        assert all(0.0 < server["waits_s"] <= 60.0 for server in servers)
        assert (await placed(worker.session, 3)).terms == (2, 2)
        after = (await status_of(job))["servers"]
        assert [(s["alive"], s["waits_s"]) for s in after] == [(True, None)] * 2


async def test_one_that_does_not_come_back_fails_the_job(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(server_num=2, server_return_s=0.5)
        worker, pservers = await begin(job)

        await pservers[1].session.leave()
        failure = await worker.ends_with()

        assert isinstance(failure, JobFailedError)
        assert (failure.role, failure.index) == ("pserver", 1)
        assert failure.reason.endswith("no process came back with its data in 0.5 s")


async def test_another_coordinator_lets_it_return(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(server_num=2)
        worker, pservers = await begin(job)
        await job.join("pserver", 1, **KEEPS)
        await pservers[0].die()
        first.cancel()
        await asyncio.wait([first])

        job.coordinator(server_num=2)
        again = await job.join("pserver", 0, **KEEPS)

        placement = await placed(worker.session, 3)
        assert placement.terms == (2, 2)
        assert placement.endpoints == ("127.0.0.1:8000", "127.0.0.1:8001")
        assert again.session.epoch == 1
