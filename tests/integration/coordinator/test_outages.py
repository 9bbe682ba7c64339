"""Redis and the coordinator go away and come back while a job runs."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from paramfleet_shared.discovery.errors import (
    BarrierTimeoutError,
    GatherLostError,
    NoCoordinatorError,
    NoRedisError,
    RedisRefusedError,
)
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import secret_for

pytestmark = pytest.mark.slow


@pytest.fixture
def lasting_redis(tmp_path: Any) -> Any:
    """Return a redis-server, not started, whose data outlive a restart."""
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), persist=True)
    yield server
    server.stop()


@pytest.fixture
def dead_registry(redis_url: str, job_name: str) -> Callable[[float], Awaitable[None]]:
    """Return a function that leaves the lease of a killed coordinator behind."""

    async def leave_behind(lease_ttl_s: float) -> None:
        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        where = CoordinatorRecord(endpoint="127.0.0.1:1", admin="", host="h", pid=1)
        await JobRegistry(
            store, job=job_name, record=where, lease_ttl_s=lease_ttl_s
        ).try_claim()
        await store.close()

    return leave_behind


async def go_on(job: Any, workers: list[Any], coordinator: Any) -> None:
    """Show that the job is well: a barrier, a gather, an end."""
    await asyncio.gather(*(worker.session.barrier("after") for worker in workers))
    gathered = await asyncio.gather(
        *(w.session.gather("after", bytes([w.session.member.index])) for w in workers)
    )
    assert gathered == [[bytes([i]) for i in range(len(workers))]] * len(workers)
    await asyncio.gather(*(worker.session.mark_done() for worker in workers))
    assert [await worker.ends_with() for worker in workers] == [None] * len(workers)
    await job.sweep()
    assert await coordinator == 0


async def test_redis_restarts_empty_in_the_middle_of_a_barrier(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        coordinator = job.coordinator(worker_num=3)
        workers, pservers = await job.crew(workers=3, pservers=1)
        await asyncio.gather(*(worker.session.barrier("start") for worker in workers))

        async with asyncio.TaskGroup() as waits:
            waits.create_task(workers[0].session.barrier("middle"))
            waits.create_task(workers[1].session.barrier("middle"))
            await job.standing("middle", 2)
            own_redis.kill()
            await asyncio.sleep(1.5)
            await own_redis.start()
            waits.create_task(workers[2].session.barrier("middle"))

        assert [w.session.member.incarnation for w in workers + pservers] == [1] * 4
        await go_on(job, workers, coordinator)


async def test_redis_restarts_with_its_data_in_the_middle_of_a_barrier(
    stage: Any, lasting_redis: EmbeddedRedis, job_name: str
) -> None:
    await lasting_redis.start()
    async with stage(lasting_redis.url, job_name) as job:
        coordinator = job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        async with asyncio.TaskGroup() as waits:
            waits.create_task(workers[0].session.barrier("middle"))
            await job.standing("middle", 1)
            lasting_redis.stop()
            waits.create_task(workers[1].session.barrier("middle"))
            await asyncio.sleep(1.5)
            await lasting_redis.start()

        await go_on(job, workers, coordinator)


async def test_a_redis_that_hangs_for_a_while_kills_nobody(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        coordinator = job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        assert own_redis.pid is not None
        os.kill(own_redis.pid, signal.SIGSTOP)
        await asyncio.sleep(2.0)
        os.kill(own_redis.pid, signal.SIGCONT)

        await go_on(job, workers, coordinator)


async def test_a_redis_that_stays_away_ends_members_and_coordinator(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        job.common["outage_grace_s"] = 0.8
        job.common["call_timeout_s"] = 0.3
        coordinator = job.coordinator()
        workers, _ = await job.crew(workers=1, pservers=1)

        own_redis.kill()
        ended = await workers[0].ends_with()

        assert isinstance(ended, NoRedisError)
        assert isinstance(await coordinator, NoRedisError)
        with pytest.raises(NoRedisError):
            await workers[0].session.barrier("start")


async def test_a_coordinator_that_comes_back_elsewhere_goes_on_with_the_barrier(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(worker_num=2)
        workers, pservers = await job.crew(workers=2, pservers=1)
        before = await pservers[0].session.wait_placement()
        await workers[0].session.publish({"step": 1})

        async with asyncio.TaskGroup() as waits:
            waits.create_task(workers[0].session.barrier("middle"))
            await job.standing("middle", 1)
            first.cancel()
            await asyncio.wait([first])
            second = job.coordinator(worker_num=2)
            waits.create_task(workers[1].session.barrier("middle"))

        assert await pservers[0].session.wait_placement() == before
        await go_on(job, workers, second)


async def forget_all(redis: EmbeddedRedis, coordinator: "asyncio.Task[Any]") -> None:
    """End all who know the job but its members, and start Redis again, empty."""
    redis.kill()
    coordinator.cancel()
    await asyncio.wait([coordinator])
    await redis.start()


async def test_redis_and_the_coordinator_go_at_once_and_the_members_bring_both_back(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        first = job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)
        await asyncio.gather(*(worker.session.barrier("middle") for worker in workers))

        await forget_all(own_redis, first)
        await asyncio.sleep(0.5)
        second = job.coordinator(worker_num=2)

        await go_on(job, workers, second)


async def test_what_an_empty_redis_and_a_new_coordinator_lack_is_what_members_know(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    """A worker that comes back then learns that the others train, and what they have passed."""
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        sizes = {"worker_num": 2, "worker_return_s": 60.0}
        first = job.coordinator(**sizes)
        workers, _ = await job.crew(workers=2, pservers=1)
        run_id = workers[0].session.run_id
        placed = await workers[0].session.wait_placement()
        await asyncio.gather(*(worker.session.barrier("start") for worker in workers))

        await forget_all(own_redis, first)
        second = job.coordinator(is_again=True, **sizes)  # before any heartbeat
        await job.standing_at_epoch(1)
        await workers[1].die()
        workers[1] = await job.join("worker", 1)

        back = workers[1].session
        assert (back.late, back.run_id, back.epoch) == (True, run_id, 1)
        assert back.has_passed("start")
        assert await back.wait_placement() == placed
        await back.barrier("start")
        back.level_with_former()
        await go_on(job, workers, second)


async def test_what_a_worker_has_passed_is_said_though_another_was_there_first(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    """A pserver says what it knows of the run, which goes on before a worker has been there."""
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        sizes = {"worker_num": 2, "worker_return_s": 60.0}
        first = job.coordinator(**sizes)
        _, *workers = await asyncio.gather(
            job.join("pserver", 0, lease_renew_s=0.05),
            *(job.join("worker", rank, lease_renew_s=0.39) for rank in range(2)),
        )
        await workers[0].session.wait_placement()
        await asyncio.gather(*(worker.session.barrier("start") for worker in workers))

        await forget_all(own_redis, first)
        job.coordinator(is_again=True, **sizes)
        await job.standing_at_epoch(1)
        await workers[1].die()
        back = (await job.join("worker", 1)).session

        assert back.has_passed("start")
        back.level_with_former()
        await asyncio.gather(workers[0].session.barrier("end"), back.barrier("end"))


async def test_a_gather_whose_payloads_redis_lost_says_so(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        async with asyncio.TaskGroup() as waits:
            early = waits.create_task(_outcome(workers[0].session.gather("auc", b"0")))
            await job.standing("gather/auc", 1)
            own_redis.kill()
            await own_redis.start()
            late = waits.create_task(_outcome(workers[1].session.gather("auc", b"1")))

        for task in (early, late):
            assert isinstance(task.result(), GatherLostError)
            assert "workers [0]" in str(task.result())


async def test_a_coordinator_that_stays_away_ends_the_job_by_name(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.common["outage_grace_s"] = 0.8
        first = job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        first.cancel()
        waited = await _outcome(workers[0].session.barrier("start"))
        ended = await workers[1].ends_with()

        for error in (waited, ended):
            assert isinstance(error, JobFailedError)
            assert (error.role, error.index) == ("coordinator", 0)


async def test_a_barrier_without_a_coordinator_keeps_its_deadline(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)
        first.cancel()
        await asyncio.wait([first])

        started = asyncio.get_running_loop().time()
        with pytest.raises(BarrierTimeoutError, match="coordinator"):
            await workers[0].session.barrier("start", timeout_s=0.5)

        assert asyncio.get_running_loop().time() - started < 0.5 + LATE_S


async def test_leaving_without_redis_takes_one_lease_and_raises_nothing(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        job.coordinator(outage_grace_s=0.5)
        workers, _ = await job.crew(workers=1, pservers=1)

        own_redis.kill()
        started = asyncio.get_running_loop().time()
        await workers[0].session.leave()
        await workers[0].session.leave()

        assert asyncio.get_running_loop().time() - started < 1.2 + LATE_S


async def test_the_address_of_a_dead_coordinator_is_tried_until_another_takes_over(
    stage: Any, redis_url: str, job_name: str, dead_registry: Callable[[float], Awaitable[None]]
) -> None:
    async with stage(redis_url, job_name) as job:
        await dead_registry(0.5)

        async with asyncio.TaskGroup() as early:
            joining = early.create_task(job.join("worker", 0))
            job.coordinator()

        assert joining.result().session.member.index == 0


async def test_the_address_of_a_dead_coordinator_alone_is_given_up_in_time(
    stage: Any, redis_url: str, job_name: str, dead_registry: Callable[[float], Awaitable[None]]
) -> None:
    async with stage(redis_url, job_name) as job:
        await dead_registry(60.0)

        with pytest.raises(NoCoordinatorError, match="could not be reached"):
            await job.join("worker", 0, join_timeout_s=0.4)


async def test_a_join_that_redis_could_not_note_leaves_the_place_free(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        job.coordinator()
        pserver = await job.join("pserver", 0)
        store = RedisStore(own_redis.url, clock=SystemClock(), timeout_s=2.0)
        job_registry = await Registry(store, job=job_name).find_coordinator()
        await store.close()
        assert job_registry is not None
        channel = Channel(
            job_registry.endpoint,
            peer="coordinator",
            clock=SystemClock(),
            secret=secret_for(job_name),
        )
        fields = {"job": job_name, "role": "worker", "index": 0, "nonce": "n", "host": "h"}
        message = Message(fields={**fields, "pid": 1, "endpoint": "", "admin": ""})

        own_redis.kill()
        with pytest.raises(NoRedisError):
            await channel.call("join", message, timeout_s=5.0)
        await own_redis.start()
        worker = await job.join("worker", 0)
        await channel.close()

        assert worker.session.member.index == 0
        assert pserver.session.failure() is None


async def test_a_redis_with_another_password_is_refused_at_once(
    tmp_path: Any, job_name: str
) -> None:
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="127.0.0.1", password="right")
    await server.start()
    try:
        settings = JobSettings(redis=server.url.replace("right", "wrong"), job=job_name)
        with pytest.raises(RedisRefusedError) as caught:
            await JobSession.join(
                settings, role="worker", index=0, endpoint="", admin="", clock=SystemClock()
            )
        assert "wrong" not in str(caught.value)
    finally:
        server.stop()


async def _outcome(work: Any) -> Any:
    try:
        return await work
    except (JobFailedError, GatherLostError) as error:
        return error
