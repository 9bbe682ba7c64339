"""Requests wait for a condition, never past their deadline."""

import asyncio
from typing import Any

import pytest

from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.errors import FleetError, JobFailedError, UnavailableError
from paramfleet_shared.system.clock import SystemClock

CLOCK = SystemClock()
FAILURE = JobFailedError(role="worker", index=1, reason="gone")


def late(waited_s: float) -> FleetError:
    return UnavailableError("too late", waited_s=waited_s)


def soon(seconds: float) -> float:
    return CLOCK.monotonic() + seconds


async def waiting(
    parking: Parking[int], tasks: asyncio.TaskGroup, key: int, **more: Any
) -> Any:
    task = tasks.create_task(
        parking.wait(key, deadline=more.get("deadline"), late=late), name=f"wait {key}"
    )
    await asyncio.sleep(0)
    return task


async def test_all_who_wait_for_a_key_go_on_and_no_others() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)
    async with asyncio.TaskGroup() as tasks:
        first = await waiting(parking, tasks, 1)
        second = await waiting(parking, tasks, 1, deadline=soon(5))
        other = await waiting(parking, tasks, 2)
        assert parking.awaited() == (1, 2)

        parking.wake([1, 7])
        await asyncio.wait([first, second])

        assert not other.done()
        assert parking.awaited() == (2,)
        parking.wake([2])


async def test_a_wait_ends_before_its_deadline_with_the_error_it_was_given() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)
    deadline = soon(2.0)

    with pytest.raises(UnavailableError, match="too late") as caught:
        await parking.wait(1, deadline=deadline, late=late)

    assert CLOCK.monotonic() < deadline
    assert 0 < caught.value.facts["waited_s"] < 2.0
    assert parking.awaited() == ()


async def test_a_deadline_that_has_passed_ends_the_wait_at_once() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)

    with pytest.raises(UnavailableError):
        await parking.wait(1, deadline=soon(-1), late=late)


async def test_one_who_gives_up_leaves_the_others_waiting() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)
    async with asyncio.TaskGroup() as tasks:
        first = await waiting(parking, tasks, 1)
        second = await waiting(parking, tasks, 1)

        first.cancel()
        await asyncio.wait([first])

        assert parking.awaited() == (1,)
        second.cancel()
        await asyncio.wait([second])
        assert parking.awaited() == ()


async def test_one_cancelled_in_the_moment_of_its_waking_harms_nobody() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)
    async with asyncio.TaskGroup() as tasks:
        first = await waiting(parking, tasks, 1)
        second = await waiting(parking, tasks, 2)
        for task in (first, second):
            task.cancel()

        parking.wake([1])
        parking.fail(FAILURE)

    assert first.cancelled()
    assert second.cancelled()


async def test_a_failure_ends_all_waits_and_those_to_come() -> None:
    parking: Parking[int] = Parking(clock=CLOCK)

    async def fails() -> None:
        with pytest.raises(JobFailedError):
            await parking.wait(1, deadline=None, late=late)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(fails())
        await asyncio.sleep(0)
        parking.fail(FAILURE)
    await fails()
