"""A job from the first member to the last word, with real parts."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import pytest
import redis

from paramfleet_shared.discovery import barriers
from paramfleet_shared.discovery.errors import (
    BarrierTimeoutError,
    ConcurrentCollectiveError,
    CoordinatorExistsError,
    EpochEndedError,
    FencedError,
    IndexTakenError,
    JobFinishedError,
    JobFullError,
    JobSizeError,
    NoCoordinatorError,
    NoRedisError,
    OtherCallError,
    PlacementTimeoutError,
    WorkersOnlyError,
)
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry import waiting
from paramfleet_shared.testing.patience import LATE_S

T = TypeVar("T")

FAST_LEASE_TTL_S = 1.2
"""As the stage sets it."""

pytestmark = pytest.mark.slow


async def test_a_job_starts_trains_and_finishes(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(worker_num=2, server_num=2, num_shards=4)
        workers, pservers = await job.crew(workers=2, pservers=2)
        placement = await workers[0].session.wait_placement()

        await asyncio.gather(*(w.session.barrier("start") for w in workers))
        payloads = await asyncio.gather(
            *(w.session.gather("ranks", bytes([w.session.member.index])) for w in workers)
        )
        again = await asyncio.gather(*(w.session.gather("ranks", b"x") for w in workers))
        await asyncio.gather(*(w.session.mark_done() for w in workers))
        ends = [await part.ends_with() for part in workers + pservers]
        for part in workers + pservers:
            await part.session.leave()

        assert placement.endpoints == ("127.0.0.1:7000", "127.0.0.1:7001")
        assert placement.num_shards == 4
        assert payloads == [[b"\0", b"\1"]] * 2
        assert again == [[b"x", b"x"]] * 2
        assert ends == [None] * 4
        assert workers[0].session.finished
        assert workers[0].session.failure() is None
        assert await coordinator == 0


async def test_what_is_gathered_is_kept_as_long_as_anybody_waits(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=1)
        (worker,), _ = await job.crew(workers=1, pservers=1)
        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        kept_ms = {}
        try:
            for name, timeout_s in (("short", 60.0), ("long", 86_400.0)):
                await worker.session.gather(name, b"x", timeout_s=timeout_s)
                key = Keys(job_name).of_run(1, f"gather:1:{name}")[-1]
                kept_ms[name] = await store.command("PTTL", key)
        finally:
            await store.close()
        await worker.session.mark_done()

        assert 590_000 < kept_ms["short"] <= 600_000
        assert 86_000_000 < kept_ms["long"] <= 86_400_000


async def test_the_order_of_starting_does_not_matter(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job, asyncio.TaskGroup() as early:
        joining = early.create_task(job.crew(workers=1, pservers=1))
        await asyncio.sleep(0.3)

        job.coordinator()
        workers, _ = await joining

        assert (await workers[0].session.wait_placement()).num_servers == 1


async def test_members_without_an_index_get_different_ones(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=3)

        workers = await asyncio.gather(*(job.join("worker") for _ in range(3)))

        assert sorted(w.session.member.index for w in workers) == [0, 1, 2]
        assert [w.session.member.incarnation for w in workers] == [1, 1, 1]
        with pytest.raises(JobFullError):
            await job.join("worker")
        with pytest.raises(IndexTakenError, match="worker 1 is held by process"):
            await job.join("worker", 1)


async def test_the_death_of_a_member_ends_every_wait_and_names_it(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(worker_num=3, server_num=2)
        workers, pservers = await job.crew(workers=2, pservers=1)
        loop = asyncio.get_running_loop()

        async with asyncio.TaskGroup() as waits:
            waiting = [
                waits.create_task(_error_of(workers[0].session.barrier("start"))),
                waits.create_task(_error_of(pservers[0].session.wait_placement())),
            ]
            await job.standing("start", 1)
            await workers[1].die()
            died_at = loop.time()
        took_s = loop.time() - died_at

        for error in [task.result() for task in waiting] + [await workers[0].ends_with()]:
            assert isinstance(error, JobFailedError)
            assert (error.role, error.index) == ("worker", 1)
            assert "is dead: last heartbeat" in error.reason
        assert took_s < FAST_LEASE_TTL_S + LATE_S
        assert isinstance(workers[0].session.failure(), JobFailedError)
        assert await coordinator == 1


async def test_a_member_that_gives_up_ends_the_job_with_its_reason(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(worker_num=2)
        workers, pservers = await job.crew(workers=2, pservers=1)

        await workers[0].session.fail("loss is NaN at step 12")
        await workers[1].session.fail("me too")

        error = await pservers[0].ends_with()
        assert str(error) == "the job failed: worker 0: loss is NaN at step 12"
        assert await coordinator == 1
        with pytest.raises(JobFailedError, match="worker 0"):
            await workers[1].session.barrier("next")


async def test_a_worker_that_has_finished_is_not_waited_for(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=3)
        workers, _ = await job.crew(workers=3, pservers=1)

        async with asyncio.TaskGroup() as waits:
            for worker in workers[:2]:
                waits.create_task(worker.session.barrier("epoch"))
            await job.standing("epoch", 2)
            await workers[2].session.mark_done()
            await workers[2].die()

        assert workers[0].session.failure() is None


async def test_a_second_call_of_a_collective_at_the_same_time_is_refused(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        (first, second), _ = await job.crew(workers=2, pservers=1)

        async with asyncio.TaskGroup() as waits:
            found = waits.create_task(first.session.gather("sum", b"x"))
            passes = waits.create_task(first.session.barrier("epoch"))
            await job.standing("gather/sum", 1)
            await job.standing("epoch", 1)
            with pytest.raises(ConcurrentCollectiveError, match="sum: another thread"):
                await first.session.gather("sum", b"lost")
            with pytest.raises(ConcurrentCollectiveError, match="epoch: another thread"):
                await first.session.barrier("epoch")
            await second.session.gather("sum", b"y")
            await second.session.barrier("epoch")

        assert await found == [b"x", b"y"]
        await passes


@pytest.mark.parametrize("first_at_rest", [True, False])
async def test_workers_that_wait_for_each_other_in_different_calls_are_told(
    stage: Any, redis_url: str, job_name: str, *, first_at_rest: bool
) -> None:
    async def ends(worker: Any) -> None:
        at = "fleet.stop_worker (train.py:9)"
        with pytest.raises(JobFailedError, match="it was wrong"):
            await worker.session.gather("fleet.finish", b"", timeout_s=LATE_S, at=at)

    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        (first, second), _ = await job.crew(workers=2, pservers=1)
        async with asyncio.TaskGroup() as waits:
            if first_at_rest:
                waits.create_task(ends(second))
                await job.standing("gather/fleet.finish", 1)
            reduces = waits.create_task(
                raised_by(
                    first.session.gather("sum", b"x", at="fleet.util.all_reduce (a.py:4)")
                )
            )
            await job.standing("gather/sum", 1)
            if not first_at_rest:
                waits.create_task(ends(second))
            error = await reduces
            await first.session.fail("it was wrong")

    assert isinstance(error, OtherCallError)
    assert (
        "worker 0 waits in fleet.util.all_reduce (a.py:4), "
        "worker 1 waits in fleet.stop_worker (train.py:9): every worker must make each"
    ) in str(error)


async def test_a_call_in_which_the_training_goes_on_holds_nobody_up(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        (first, second), _ = await job.crew(workers=2, pservers=1)
        async with asyncio.TaskGroup() as waits:
            waits.create_task(first.session.gather("sum", b"x", at="all_reduce"))
            await job.standing("gather/sum", 1)
            with pytest.raises(BarrierTimeoutError):  # beside its training
                await second.session.gather("beside", b"", timeout_s=3.0)
            await second.session.gather("sum", b"y", at="all_reduce")


async def raised_by(wait: Awaitable[Any]) -> Exception:
    with pytest.raises(OtherCallError) as caught:
        await wait
    return caught.value


class Told(logging.Handler):
    """What is logged of whom a worker waits for."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.facts: list[dict[str, Any]] = []
        self.first = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "worker.waits_for_others":
            self.facts.append(vars(record))
            self.first.set()


async def test_who_waits_for_long_is_told_once_for_whom(
    stage: Any,
    redis_url: str,
    job_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waiting, "TOLD_AFTER_S", 0.2)
    monkeypatch.setattr(barriers, "_PARK_S", 0.1)
    told = Told()
    monkeypatch.setattr(waiting.log, "handlers", [told])
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        (first, second), _ = await job.crew(workers=2, pservers=1)
        await second.session.publish({"at": "in step 18"})
        async with asyncio.timeout(LATE_S):
            while not await first.session.whereabouts():  # noqa: ASYNC110 - polls Redis
                await asyncio.sleep(0.01)
        with caplog.at_level(logging.INFO):
            async with asyncio.TaskGroup() as waits:
                waits.create_task(first.session.gather("fleet.all_reduce", b"x"))
                await told.first.wait()
                with pytest.raises(BarrierTimeoutError):  # it says so itself, if it is to
                    await second.session.barrier("its own", timeout_s=0.6)
                await second.session.gather("fleet.all_reduce", b"y")

    (facts,) = told.facts
    assert (facts["at"], facts["missing"]) == ("fleet.all_reduce", "worker 1 (in step 18)")
    assert facts["waited_s"] < facts["at_most_s"]


async def test_a_barrier_that_times_out_says_who_is_missing_and_may_be_tried_again(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=3)
        workers, _ = await job.crew(workers=3, pservers=1)
        await workers[2].session.publish({"at": "in fleet.util.all_reduce (train.py:3)"})
        async with asyncio.timeout(LATE_S):
            while not await workers[0].session.whereabouts():  # noqa: ASYNC110 - polls Redis
                await asyncio.sleep(0.01)

        with pytest.raises(BarrierTimeoutError) as caught:
            await workers[0].session.barrier("save", timeout_s=0.3)
        await asyncio.gather(*(worker.session.barrier("save") for worker in workers))

        assert (caught.value.arrived, caught.value.missing) == ([0], [1, 2])
        assert "barrier 'save' (use 1) after 0." in str(caught.value)
        assert "worker 2 is in fleet.util.all_reduce (train.py:3)" in str(caught.value)


async def test_a_placement_that_is_not_complete_in_time_names_the_missing(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(server_num=3)
        await job.join("pserver", 1)
        worker = await job.join("worker", 0, join_timeout_s=0.5)

        with pytest.raises(PlacementTimeoutError) as caught:
            await worker.session.wait_placement()

        assert caught.value.missing == [0, 2]


async def test_what_is_among_workers_is_refused_to_a_pserver(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator()
        pserver = await job.join("pserver", 0)

        with pytest.raises(WorkersOnlyError):
            await pserver.session.barrier("start")
        with pytest.raises(WorkersOnlyError):
            await pserver.session.gather("start", b"")


async def test_a_pserver_that_leaves_early_fails_the_job(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator()
        workers, pservers = await job.crew(workers=1, pservers=1)

        await pservers[0].session.leave()

        error = await workers[0].ends_with()
        assert str(error).startswith("the job failed: pserver 0: left before")


async def test_a_worker_restarted_before_the_training_follows_on_and_fences_its_former_self(
    stage: Any, redis_url: str, job_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=1, pservers=1)
        await workers[0].die()

        successor = await job.join("worker", 0)
        other = await job.join("worker", 1)
        await asyncio.gather(successor.session.barrier("start"), other.session.barrier("start"))

        assert successor.session.member.incarnation == 2
        with pytest.raises(FencedError, match="replaced by incarnation 2"):
            await workers[0].session.mark_done()
        with pytest.raises(FencedError):
            await workers[0].session.barrier("start")
        await workers[0].session.leave()  # it has no place to give back
        assert "job.left_silently" not in caplog.text
        assert not successor.beating.done()


async def test_a_worker_restarted_in_training_does_not_hide_its_death(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator()
        workers, pservers = await job.crew(workers=1, pservers=1)
        await workers[0].session.barrier("start")
        await workers[0].die()

        with pytest.raises(IndexTakenError):
            await job.join("worker", 0)

        failure = await pservers[0].ends_with()
        assert isinstance(failure, JobFailedError)
        assert (failure.role, failure.index) == ("worker", 0)
        assert await coordinator == 1


async def test_published_facts_are_in_the_status_and_readable_by_members(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=1, server_num=2)
        workers, pservers = await job.crew(workers=1, pservers=2)
        for rows, pserver in zip((3, 4), pservers, strict=True):
            table = {"name": "users", "kind": "sparse", "rows": rows, "version": rows}
            await pserver.session.publish({"tables": [table], "ready": True})
        await workers[0].session.publish({"step": 5, "loss": 0.5})

        status = await _status(redis_url, job_name, job.heads, until=_all_published)
        facts = await _eventually(lambda: pservers[0].session.read_facts("worker"))

        assert facts == {0: {"step": 5, "loss": 0.5}}
        assert (status["job"], status["state"], status["failure"]) == (
            job_name,
            "training",
            None,
        )
        assert [(m["role"], m["index"], m["alive"], m["done"]) for m in status["members"]] == [
            ("pserver", 0, True, False),
            ("pserver", 1, True, False),
            ("worker", 0, True, False),
        ]
        assert status["tables"] == [
            {"name": "users", "kind": "sparse", "rows": 7, "version": 4}
        ]
        assert status["placement"]["endpoints"] == ["127.0.0.1:7000", "127.0.0.1:7001"]


async def test_an_open_barrier_is_in_the_status(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        async with asyncio.TaskGroup() as waits:
            waits.create_task(workers[0].session.barrier("start"))
            status = await _status(
                redis_url, job_name, job.heads, until=lambda s: s["barriers"]
            )
            waits.create_task(workers[1].session.barrier("start"))

        assert status["barriers"] == [
            {"name": "start", "generation": 1, "arrived": [0], "missing": [1]}
        ]


class SeenAtServing(logging.Handler):
    """Reads who coordinates the job at the moment the coordinator logs that it serves."""

    def __init__(self, redis_url: str, job: str) -> None:
        super().__init__()
        self._redis_url = redis_url
        self._job = job
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "coordinator.serving":
            with redis.Redis.from_url(self._redis_url) as client:
                text: Any = client.hget(f"paramfleet:{self._job}:coordinator", "record")
            self.found.append(json.loads(text))


async def test_who_reads_that_it_serves_finds_its_addresses(
    stage: Any, redis_url: str, job_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paramfleet_coordinator")
    seen = SeenAtServing(redis_url, job_name)
    logger = logging.getLogger("paramfleet_coordinator")
    logger.addHandler(seen)
    try:
        async with stage(redis_url, job_name) as job:
            job.coordinator()
            await job.join("worker", 0)
    finally:
        logger.removeHandler(seen)

    (found,) = seen.found
    assert found["endpoint"].startswith("127.0.0.1:")
    assert found["admin"].startswith("127.0.0.1:")


async def test_a_second_coordinator_is_refused(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator()
        await job.join("worker", 0)

        error = await job.coordinator()

        assert isinstance(error, CoordinatorExistsError)
        assert not first.done()


async def test_a_new_job_of_the_same_name_starts_afresh_after_a_failed_one(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator()
        old = await job.join("worker", 0)
        await old.session.fail("first run")
        assert await first == 1

        job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)
        await asyncio.gather(*(worker.session.barrier("start") for worker in workers))

        assert [w.session.member.index for w in workers] == [0, 1]
        with pytest.raises(EpochEndedError, match="is in run 2 now"):
            await old.session.mark_done()


async def test_leftovers_of_a_job_whose_processes_are_all_gone_do_not_confuse(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator()
        workers, pservers = await job.crew(workers=1, pservers=1)
        for part in workers + pservers:
            await part.die()
        first.cancel()

        job.coordinator(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)
        await asyncio.gather(*(worker.session.barrier("start") for worker in workers))

        assert workers[0].session.failure() is None


async def test_a_coordinator_of_other_sizes_does_not_take_over_a_running_job(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        first = job.coordinator(worker_num=1)
        await job.crew(workers=1, pservers=1)
        first.cancel()

        error = await job.coordinator(worker_num=2)

        assert isinstance(error, JobSizeError)
        assert "running with worker_num = 1, not 2" in str(error)


async def test_without_redis_the_error_says_where_and_what_to_do(
    stage: Any, job_name: str
) -> None:
    async with stage("redis://:secret@127.0.0.1:1/0", job_name) as job:
        with pytest.raises(NoRedisError) as caught:
            await job.join("worker", 0, join_timeout_s=0.3)
        coordinator = await job.coordinator(join_timeout_s=0.3)

        assert "redis://:***@127.0.0.1:1/0" in str(caught.value)
        assert "PARAMFLEET_REDIS" in str(caught.value)
        assert isinstance(coordinator, NoRedisError)


async def test_without_a_coordinator_the_error_says_so_in_time(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        with pytest.raises(NoCoordinatorError, match="paramfleet coordinator"):
            await job.join("worker", 0, join_timeout_s=0.3)


async def _finished_job(job: Any) -> None:
    """Run a job of launch ``own`` to its good end, and that of its coordinator."""
    job.common["launch"] = "own"
    coordinator = job.coordinator()
    workers, pservers = await job.crew(workers=1, pservers=1)
    await workers[0].session.wait_placement()
    await workers[0].session.mark_done()
    for part in (*workers, *pservers):
        assert await part.ends_with() is None
        await part.session.leave()
    assert await coordinator == 0


@pytest.mark.parametrize("role", ["pserver", "process", "worker"])
async def test_a_process_that_comes_after_the_end_is_told_that_its_job_has_finished(
    stage: Any, redis_url: str, job_name: str, role: str
) -> None:
    async with stage(redis_url, job_name) as job:
        await _finished_job(job)

        with pytest.raises(JobFinishedError, match=f"has finished, and accepts no {role}"):
            await job.join(role, 0, join_timeout_s=LATE_S)


async def test_it_is_told_so_when_the_coordinator_has_ended_while_it_asked(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        await _finished_job(job)
        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        record = CoordinatorRecord(
            endpoint="127.0.0.1:1", admin="", host="here", pid=1, launch="own"
        )
        left = JobRegistry(store, job=job_name, record=record, lease_ttl_s=600.0)
        try:
            assert await left.try_claim() is None

            with pytest.raises(JobFinishedError):
                await job.join("process", 0, join_timeout_s=LATE_S)
        finally:
            await store.close()


@pytest.mark.parametrize("launch", ["", "another"])
async def test_the_end_of_another_launch_is_no_news(
    stage: Any, redis_url: str, job_name: str, launch: str
) -> None:
    async with stage(redis_url, job_name) as job:
        await _finished_job(job)

        with pytest.raises(NoCoordinatorError):
            await job.join("process", 0, join_timeout_s=0.3, launch=launch)


async def _error_of(work: Any) -> BaseException | None:
    try:
        await work
    except JobFailedError as error:
        return error
    return None


def _all_published(status: dict[str, Any]) -> bool:
    return len(status["members"]) == 3 and all(m["facts"] for m in status["members"])


async def _status(
    redis_url: str, job_name: str, heads: dict[str, str], *, until: Any
) -> dict[str, Any]:
    """Ask the coordinator's admin address until its answer shows something."""
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=1.0)
    try:
        coordinator = await Registry(store, job=job_name).find_coordinator()
    finally:
        await store.close()
    assert coordinator is not None
    async with aiohttp.ClientSession() as client:

        async def ask() -> dict[str, Any] | None:
            async with client.get(
                f"http://{coordinator.admin}/status", headers=heads
            ) as answer:
                status: dict[str, Any] = await answer.json()
            return status if until(status) else None

        return await _eventually(ask)


async def _eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return the first answer of ``look`` that isn't empty."""
    while True:
        if found := await look():
            return found
        await asyncio.sleep(0.05)
