"""Waits that end with the job."""

import asyncio

import pytest

from paramfleet_shared.discovery.membership.life import JobLife
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.records import Failure, JobRecord
from paramfleet_shared.errors import JobFailedError

FAILED = JobRecord(state="failed", failure=Failure(role="worker", index=1, reason="died"))


async def wait_forever(life: JobLife) -> None:
    async with life.until_failure():
        await asyncio.Event().wait()


async def test_a_failure_ends_every_wait_with_an_error_of_its_own() -> None:
    life = JobLife()

    async with asyncio.TaskGroup() as group:

        async def outcome() -> JobFailedError:
            with pytest.raises(JobFailedError) as caught:
                await wait_forever(life)
            return caught.value

        waits = [group.create_task(outcome()) for _ in range(2)]
        await asyncio.sleep(0)
        life.note(FAILED)

    first, second = (task.result() for task in waits)
    assert (first.role, first.index, first.reason) == ("worker", 1, "died")
    assert first is not second


async def test_a_wait_after_the_failure_ends_at_once() -> None:
    life = JobLife()
    life.note(FAILED)

    with pytest.raises(JobFailedError):
        await wait_forever(life)


async def test_a_time_limit_of_the_body_stays_its_own() -> None:
    life = JobLife()

    with pytest.raises(TimeoutError):
        async with life.until_failure(), asyncio.timeout(0.001):
            await asyncio.Event().wait()


async def test_a_wait_that_is_over_leaves_nothing_behind() -> None:
    life = JobLife()

    async with life.until_failure():
        pass
    life.note(FAILED)

    assert isinstance(life.failure, JobFailedError)


async def test_the_first_end_stays() -> None:
    life = JobLife()
    life.note(JobRecord(state="finished"))

    life.note(FAILED)

    assert life.finished
    assert life.failure is None


async def test_a_registry_that_came_back_empty_says_nothing() -> None:
    life = JobLife()

    life.note(None)

    assert not life.finished
    assert life.failure is None


def test_the_newest_placement_stays_whatever_an_older_registry_says() -> None:
    life = JobLife()
    first = Placement(endpoints=("a:1",), num_shards=4, terms=(1,))
    second = first.with_server(0, endpoint="b:1", term=2)

    life.note(JobRecord(state="waiting"))
    before = life.placement
    life.note(JobRecord(state="training", placement=second.to_wire()))
    life.note(JobRecord(state="training", placement=first.to_wire()))
    life.note(JobRecord(state="training"))

    assert before is None
    assert life.placement == second
