"""What launchers read and write in a real registry."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from paramfleet_shared.discovery.errors import OtherLaunchError
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import PROCESS, Failure, JobRecord, JobSizes, Member
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.core.events import FailureRecord, ProcessName
from paramfleet_worker.storage import JobRecords

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BOB = ProcessName("worker", 1)
LOST = Failure(role="pserver", index=2, reason="its lease expired")


class Job:
    """A coordinator's hand in the registry, and a launcher's."""

    def __init__(self, url: str) -> None:
        clock = SystemClock()
        self.url = url
        self.store = RedisStore(url, clock=clock, timeout_s=1.0)
        place = CoordinatorRecord(endpoint="h1:7000", admin="", host="h1", pid=os.getpid())
        self.job_registry = JobRegistry(self.store, job="day3", record=place, lease_ttl_s=60.0)
        self.registry = Registry(self.store, job="day3")
        settings = JobSettings(job="day3", redis=url)
        self.records = JobRecords(settings, writer="h1", clock=clock)

    async def open_run(self, *, failure: Failure | None = None) -> None:
        self.job_registry.epoch += 1
        record = JobRecord(
            state="training" if failure is None else "failed",
            sizes=JobSizes(worker_num=2, server_num=3, num_shards=8),
            failure=failure,
        )
        await self.job_registry.write_job(record)

    async def failure(self) -> Failure | None:
        record = await self.registry.read_job(self.job_registry.epoch)
        return record.failure if record is not None else None


async def test_how_a_job_stands_is_read_and_nothing_is_written(job: Job) -> None:
    before = await job.records.standing()
    await job.open_run()
    during = await job.records.standing()
    unwritten = await job.failure()
    await job.job_registry.write_job(JobRecord(state="failed", failure=LOST))
    failed = await job.records.standing()
    await job.open_run()
    await job.job_registry.write_job(JobRecord(state="finished"))

    assert before == during == (None, False)
    assert unwritten is None
    assert failed == (FailureRecord(ProcessName("pserver", 2), LOST.reason), False)
    assert await job.records.standing() == (None, True)


async def test_a_process_of_planned_groups_is_named_as_the_launcher_names_it(job: Job) -> None:
    stopped = Failure(role=PROCESS, index=0, reason="stopped by SIGTERM")
    await job.open_run(failure=stopped)

    named = FailureRecord(ProcessName("pserver", 0), "stopped by SIGTERM")
    assert await job.records.standing() == (named, False)
    assert await job.records.failure_or(BOB, "exited with code 1") == named


async def test_the_end_of_a_former_run_is_not_how_a_job_stands(job: Job) -> None:
    await job.open_run(failure=LOST)

    await job.records.note_past()

    assert await job.records.standing() == (None, False)


async def test_a_registry_that_does_not_answer_knows_of_no_end() -> None:
    records = JobRecords(
        JobSettings(job="day3", redis="redis://127.0.0.1:1/0"), writer="h1", clock=SystemClock()
    )

    assert await records.standing() == (None, False)
    await records.close()


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock())
    await redis.start()
    job = Job(redis.url)
    await job.job_registry.try_claim()
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


async def test_members_have_left_once_the_coordinator_gave_its_lease_back(job: Job) -> None:
    await job.open_run()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(job.records.wait_members_left())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.3)
        await job.job_registry.resign()


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
    dead = replace(dead, incarnation=await job.job_registry.register(dead))
    key = ("worker", 1)

    await job.records.lose(BOB, 76, "was killed by SIGKILL")
    assert (await job.job_registry.tick()).ends.get(key, "") == ""
    await job.records.lose(BOB, 77, "was killed by SIGKILL")
    lost = await job.job_registry.tick()
    assert (lost.ends[key], lost.last_words[key]) == ("lost", "was killed by SIGKILL")

    await job.records.lose(BOB, 77, "was killed by SIGKILL again", is_final=True)
    gone = await job.job_registry.tick()
    assert (gone.ends[key], gone.last_words[key]) == ("gone", "was killed by SIGKILL again")

    done = replace(dead, pid=78, nonce="b")
    done = replace(done, incarnation=await job.job_registry.register(done))
    await job.registry.beat(done, epoch=job.job_registry.epoch, end="done")
    await job.records.lose(BOB, 78, "exited with code 3")
    assert (await job.job_registry.tick()).ends[key] == "done"


@pytest.mark.parametrize(("launch", "end"), [("mine", "gone"), ("another", "")])
async def test_who_is_gone_before_it_has_joined_has_the_place_of_a_former_process(
    job: Job, launch: str, end: str
) -> None:
    await job.open_run()
    dead = Member(role="worker", index=1, incarnation=0, endpoint="", admin="", host="h1",
                  pid=77, nonce="a", launch="mine")  # fmt: skip
    await job.job_registry.register(dead)
    settings = JobSettings(job="day3", redis=job.url)
    records = JobRecords(settings, writer="h1", clock=SystemClock(), launch=launch)
    await records.lose(BOB, 99, "was killed by SIGKILL", is_final=True)
    assert (await job.job_registry.tick()).ends.get(("worker", 1), "") == "", "77 lives"
    await records.lose(BOB, 77, "was killed by SIGKILL")

    await records.lose(BOB, 99, "was killed by SIGKILL", is_final=True)

    assert (await job.job_registry.tick()).ends.get(("worker", 1), "") == end
    await records.close()


class Launches:
    """Launchers of one job on one registry."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: list[JobRecords] = []

    def one(self, launch: str, part: str = "coordinator:0", ttl_s: float = 0.6) -> JobRecords:
        records = JobRecords(
            JobSettings(redis=self.url, job="day3"),
            writer=part,
            clock=SystemClock(),
            launch=launch,
            lease_ttl_s=ttl_s,
        )
        self.made.append(records)
        return records


@pytest.fixture
async def launches(job: Job) -> AsyncIterator[Launches]:
    launches = Launches(job.store.url)
    yield launches
    for each in launches.made:
        await each.close()


@asynccontextmanager
async def vouching(records: JobRecords) -> AsyncIterator[None]:
    """Renew a launcher's lease as it does while it lives."""

    async def renew() -> None:
        while True:
            await records.vouch({})
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(renew())
        yield
        task.cancel()


async def test_a_second_launch_is_refused_while_a_launcher_of_the_first_lives(
    job: Job, launches: Launches
) -> None:
    await job.job_registry.resign()
    first = launches.one("aa", ttl_s=LATE_S)
    await first.begin()

    async with vouching(first):
        for second in (launches.one("bb"), launches.one("aa")):
            with pytest.raises(
                OtherLaunchError, match=r"'day3' runs already: launch aa, .*--job"
            ):
                await second.begin()
            assert "launch aa" in await second.vouch({})
        other_machine = launches.one("aa", "worker:1")
        await other_machine.begin()


async def test_a_second_launch_is_refused_while_a_coordinator_of_another_lives(
    job: Job, launches: Launches
) -> None:
    async with asyncio.TaskGroup() as group:

        async def renew() -> None:
            while True:
                await job.job_registry.tick()
                await asyncio.sleep(0.1)

        await job.open_run()
        task = group.create_task(renew())
        with pytest.raises(
            OtherLaunchError, match=f"coordinator is process {os.getpid()} on h1"
        ):
            await launches.one("bb").begin()
        task.cancel()


async def test_what_a_dead_launch_left_blocks_the_next_for_a_lease_and_an_ended_one_not_at_all(
    job: Job, launches: Launches
) -> None:
    await job.job_registry.resign()
    loop = asyncio.get_running_loop()
    dead, ended = launches.one("aa"), launches.one("bb", ttl_s=60.0)
    await dead.begin()
    died_at = loop.time()

    await ended.begin()
    waited_s = loop.time() - died_at
    await ended.withdraw()
    async with asyncio.timeout(5 + LATE_S):
        await launches.one("cc").begin()

    assert 0.5 < waited_s < 0.6 + LATE_S


async def test_a_dead_launchers_lease_and_then_its_coordinators_are_no_renewal(
    job: Job, launches: Launches
) -> None:
    await job.job_registry.resign()
    dead = launches.one("aa", ttl_s=0.4)
    await dead.begin()
    place = CoordinatorRecord(endpoint="h1:7000", admin="", host="h1", pid=9, launch="aa")
    job_registry = JobRegistry(job.store, job="day3", record=place, lease_ttl_s=2.0)
    await job_registry.try_claim()

    async with asyncio.timeout(10 + LATE_S):
        await launches.one("bb").begin()


async def test_a_launcher_says_nothing_about_the_run_of_another_launch(
    job: Job, launches: Launches
) -> None:
    await job.open_run()
    dead = Member(role="worker", index=1, incarnation=0, endpoint="", admin="", host="h1",
                  pid=77, nonce="a")  # fmt: skip
    await job.job_registry.register(dead)
    stranger = launches.one("bb")
    before = await job.job_registry.tick()

    known = await stranger.failure_or(BOB, "exited with code 1")
    await stranger.lose(BOB, 77, "exited with code 1")

    assert known is None
    assert await job.failure() is None
    assert await job.job_registry.tick() == before


async def test_what_launchers_vouch_for_reaches_the_coordinator(
    job: Job, launches: Launches
) -> None:
    await job.job_registry.resign()
    await launches.one("aa").begin()
    await launches.one("aa", "worker:1").begin()
    second = launches.one("aa", "worker:1")
    await asyncio.sleep(0.7)  # its former self's lease
    await second.vouch({"worker:1": 44})
    await job.job_registry.try_claim()
    await job.open_run()

    vouchers = (await job.job_registry.tick()).vouchers

    assert {part: voucher.alive for part, (_, voucher) in vouchers.items()} == {
        "coordinator:0": {},
        "worker:1": {"worker:1": 44},
    }
    renewal = vouchers["worker:1"][0]
    await second.vouch({})
    assert (await job.job_registry.tick()).vouchers["worker:1"][0] != renewal
