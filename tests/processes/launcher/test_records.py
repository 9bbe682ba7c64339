"""What launchers read and write in a real registry."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.config import JobSettings
from paramfleet_shared.discovery.embedded import EmbeddedRedis
from paramfleet_shared.discovery.records import Failure, JobRecord, JobSizes, Member
from paramfleet_shared.discovery.registry import CoordinatorSeat, Registry
from paramfleet_shared.discovery.seat import Seat
from paramfleet_shared.discovery.store import RedisStore
from paramfleet_worker.core.events import FailureRecord, ProcessName
from paramfleet_worker.storage import JobRecords

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BOB = ProcessName("worker", 1)
LOST = Failure(role="pserver", index=2, reason="its lease expired")


class Job:
    """A coordinator's hand in the registry, and a launcher's."""

    def __init__(self, url: str) -> None:
        clock = SystemClock()
        self.store = RedisStore(url, clock=clock, timeout_s=1.0)
        place = CoordinatorSeat(endpoint="h1:7000", admin="", host="h1", pid=os.getpid())
        self.seat = Seat(self.store, job="day3", record=place, lease_ttl_s=60.0)
        self.registry = Registry(self.store, job="day3")
        settings = JobSettings(job="day3", redis=url)
        self.records = JobRecords(settings, writer="h1", clock=clock)

    async def open_run(self, *, failure: Failure | None = None) -> None:
        self.seat.epoch += 1
        record = JobRecord(
            state="training" if failure is None else "failed",
            sizes=JobSizes(worker_num=2, server_num=3, num_shards=8),
            failure=failure,
        )
        await self.seat.write_job(record)

    async def failure(self) -> Failure | None:
        record = await self.registry.read_job(self.seat.epoch)
        return record.failure if record is not None else None


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock())
    await redis.start()
    job = Job(redis.url)
    await job.seat.try_claim()
    yield job
    await job.records.close()
    await job.store.close()
    redis.stop()


async def test_a_death_is_written_for_the_other_machines_where_nobody_wrote_before(
    job: Job,
) -> None:
    await job.open_run()

    known = await job.records.failure_or(BOB, "was killed by SIGKILL")

    assert known is None
    assert await job.failure() == Failure(
        role="worker", index=1, reason="was killed by SIGKILL"
    )


async def test_the_first_failure_of_a_run_stays(job: Job) -> None:
    await job.open_run(failure=LOST)

    known = await job.records.failure_or(BOB, "exited with code 1")

    assert known == FailureRecord(ProcessName("pserver", 2), "its lease expired")
    assert await job.failure() == LOST


async def test_how_an_earlier_run_ended_is_no_news(job: Job) -> None:
    await job.open_run(failure=LOST)
    await job.records.note_past()

    assert await job.records.failure_or(BOB, "exited with code 1") is None

    await job.open_run(failure=LOST)
    assert await job.records.failure_or(BOB, "exited with code 1") is not None


async def test_before_the_first_run_there_is_nothing_to_read_or_write(job: Job) -> None:
    await job.records.note_past()

    assert await job.records.failure_or(BOB, "exited with code 1") is None
    assert await job.registry.read_job(0) is None


async def test_members_have_left_once_the_coordinator_gave_its_seat_back(job: Job) -> None:
    await job.open_run()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(job.records.wait_members_left())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.3)
        await job.seat.resign()


async def test_a_registry_that_is_gone_has_nothing_to_say() -> None:
    records = JobRecords(
        JobSettings(redis="redis://127.0.0.1:1/0", job="day3"), writer="h1", clock=SystemClock()
    )

    assert not await records.answers()
    await records.note_past()
    assert await records.failure_or(BOB, "exited with code 1") is None
    await records.wait_members_left()
    await records.close()


async def test_a_worker_that_was_killed_is_lost_at_once_but_no_other_in_its_place(
    job: Job,
) -> None:
    await job.open_run()
    dead = Member(role="worker", index=1, incarnation=0, endpoint="", admin="", host="h1",
                  pid=77, nonce="a")  # fmt: skip
    dead = replace(dead, incarnation=await job.seat.register(dead))
    key = ("worker", 1)

    await job.records.lose(BOB, 76, "was killed by SIGKILL")
    assert (await job.seat.tick()).ends.get(key, "") == ""
    await job.records.lose(BOB, 77, "was killed by SIGKILL")
    lost = await job.seat.tick()
    assert (lost.ends[key], lost.last_words[key]) == ("lost", "was killed by SIGKILL")

    done = replace(dead, pid=78, nonce="b")
    done = replace(done, incarnation=await job.seat.register(done))
    await job.registry.beat(done, epoch=job.seat.epoch, end="done")
    await job.records.lose(BOB, 78, "exited with code 3")
    assert (await job.seat.tick()).ends[key] == "done"
