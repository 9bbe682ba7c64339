"""An elastic job on a real Redis: workers die, give up, come back and come late."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from paramfleet_shared.discovery.errors import FencedError, JobSizeError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

ELASTIC = {"elastic": True, "worker_grace_s": 1.5}


async def until_lost(part: Any, *ranks: int) -> None:
    """Return when a member has learnt that these workers are lost."""
    async with asyncio.timeout(LATE_S):
        while True:
            if [lost.index for lost in part.session.lost] == list(ranks):
                return
            await asyncio.sleep(0.02)


async def until_training(job: Any) -> None:
    """Return when the coordinator has seen everybody."""
    store = RedisStore(job.common["redis"], clock=SystemClock(), timeout_s=2.0)
    registry = Registry(store, job=job.common["job"])
    async with asyncio.timeout(LATE_S):
        while True:
            record = await registry.read_job(1)
            if record is not None and record.state == "training":
                break
            await asyncio.sleep(0.02)
    await store.close()


async def fenced(barrier: Awaitable[None]) -> bool:
    """Return whether a wait ended because its worker was replaced."""
    try:
        await barrier
    except FencedError:
        return True
    return False


async def test_a_job_goes_on_without_a_worker_that_died(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(worker_num=3, **ELASTIC)
        workers, pservers = await job.crew(workers=3, pservers=1)
        await until_training(job)
        async with asyncio.TaskGroup() as waits:
            for worker in workers[:2]:
                waits.create_task(worker.session.barrier("epoch"))
            await job.standing("epoch", 2)
            await workers[2].die()
        await until_lost(pservers[0], 2)
        payloads = await asyncio.gather(
            *(w.session.gather("ranks", bytes([w.session.member.index])) for w in workers[:2])
        )
        await asyncio.gather(*(w.session.mark_done() for w in workers[:2]))
        ends = [await part.ends_with() for part in [*workers[:2], *pservers]]
        for part in [*workers[:2], *pservers]:
            await part.session.leave()

        assert payloads == [[b"\0", b"\1"]] * 2
        assert ends == [None] * 3
        assert await coordinator == 0


async def test_a_worker_that_gives_up_is_lost_at_once_and_the_others_learn_why(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2, elastic=True)
        workers, pservers = await job.crew(workers=2, pservers=1)
        await until_training(job)

        await workers[1].session.give_up("ValueError: no: never")
        await until_lost(pservers[0], 1)

        assert pservers[0].session.lost[0].reason == "ValueError: no: never"
        await workers[0].session.barrier("alone")


async def test_a_worker_that_comes_back_after_its_loss_is_fenced_and_one_that_follows_it_trains(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2, **ELASTIC)
        workers, pservers = await job.crew(workers=2, pservers=1)
        await until_training(job)
        await asyncio.gather(*(w.session.barrier("start") for w in workers))
        await workers[1].die()
        await until_lost(pservers[0], 1)

        with pytest.raises(FencedError):
            await workers[1].session.run()
        successor = await job.join("worker")
        await asyncio.gather(*(w.session.barrier("epoch") for w in [workers[0], successor]))

        member = successor.session.member
        assert (member.index, member.incarnation) == (1, 3)
        assert successor.session.late
        assert successor.session.has_passed("start")
        assert not successor.session.has_passed("next")


async def test_a_late_worker_is_level_with_the_barriers_of_the_others(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2, **ELASTIC)
        workers, _ = await job.crew(workers=2, pservers=1)
        await until_training(job)
        for _ in range(3):
            await asyncio.gather(*(w.session.barrier("epoch") for w in workers))

        late = await job.join("worker", 2)
        everybody = [*workers, late]
        payloads = await asyncio.gather(
            *(w.session.gather("ranks", bytes([w.session.member.index])) for w in everybody)
        )
        await asyncio.gather(*(w.session.barrier("epoch") for w in everybody))

        assert payloads == [[b"\0", b"\1", b"\2"]] * 3
        assert [w.session.worker_num for w in everybody] == [2, 2, 3]


async def test_a_job_that_is_elastic_or_not_stays_so(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(worker_num=1, elastic=True)
        await job.crew(workers=1, pservers=1)
        first.cancel()
        await asyncio.wait([first])

        error = await job.coordinator(worker_num=1)

        assert isinstance(error, JobSizeError)
        assert "elastic = True, not False" in str(error)


async def test_a_restarted_coordinator_goes_on_without_the_lost(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(worker_num=2, **ELASTIC)
        workers, pservers = await job.crew(workers=2, pservers=1)
        await until_training(job)
        async with asyncio.TaskGroup() as waits:
            stood = waits.create_task(fenced(workers[1].session.barrier("epoch")))
            await job.standing("epoch", 1)
            await workers[1].die()
            await until_lost(pservers[0], 1)
            first.cancel()
            await asyncio.wait([first])
            job.coordinator(worker_num=2, **ELASTIC)
            successor = await job.join("worker", 1)
            await asyncio.gather(*(w.session.barrier("epoch") for w in [workers[0], successor]))

        assert stood.result()
        assert successor.session.member.incarnation == 3


async def test_a_redis_that_comes_back_empty_is_told_who_is_lost(
    stage: Any, own_redis: EmbeddedRedis, job_name: str
) -> None:
    await own_redis.start()
    async with stage(own_redis.url, job_name) as job:
        job.coordinator(worker_num=2, **ELASTIC)
        workers, pservers = await job.crew(workers=2, pservers=1)
        await until_training(job)
        await workers[1].die()
        await until_lost(pservers[0], 1)

        own_redis.stop()
        await own_redis.start()
        store = RedisStore(own_redis.url, clock=SystemClock(), timeout_s=2.0)
        registry = Registry(store, job=job_name)
        async with asyncio.timeout(LATE_S):
            while True:
                record = await registry.read_job(1)
                if record is not None and record.lost:
                    break
                await asyncio.sleep(0.05)
        await store.close()
        successor = await job.join("worker")

        assert [lost.index for lost in record.lost] == [1]
        assert successor.session.member.index == 1
        assert successor.session.member.incarnation > 1


async def test_the_lowest_rank_that_is_there_puts_down_what_late_workers_read(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=3, **ELASTIC)
        workers, pservers = await job.crew(workers=3, pservers=1)
        first, second, last = sorted((w.session for w in workers), key=lambda s: s.member.index)
        assert await last.board.read("x") is None

        await second.board.put_if_first("x", b"one")
        assert await last.board.read("x") is None, "rank 0 is there"
        await first.board.put_if_first("x", b"zero")
        await first.board.put_if_first("x", b"newer")
        assert await last.board.read("x") == b"newer"
        assert await last.board.read("y") is None

        await first.mark_done()
        await first.leave()
        assert await last.board.read("x") == b"newer", "nobody else has put any down"
        await second.board.put_if_first("x", b"one")
        assert await last.board.read("x") == b"one"

        await asyncio.gather(second.mark_done(), last.mark_done())
        for part in [second, last]:
            await part.leave()
        for pserver in pservers:
            await pserver.session.leave()
