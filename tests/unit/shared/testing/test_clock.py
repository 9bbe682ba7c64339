"""Time in a test's hand."""

import asyncio

from paramfleet_shared.testing.clock import FakeClock


async def test_sleepers_wake_each_at_its_moment_and_in_order() -> None:
    clock = FakeClock(now=0.0)
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleep("late", 2.0))
        group.create_task(sleep("early", 1.0))
        group.create_task(sleep("tie", 2.0))
        await clock.advance(1.5)
        halfway = list(woken)
        await clock.advance(1.0)

    assert halfway == [("early", 1.0)]
    assert woken[1:] == [("late", 2.0), ("tie", 2.0)]
    assert clock.monotonic() == 2.5


async def test_a_sleeper_that_sleeps_again_wakes_again_in_one_advance() -> None:
    clock = FakeClock(now=0.0)
    ticks: list[float] = []

    async def tick() -> None:
        while len(ticks) < 3:
            await clock.sleep(1.0)
            ticks.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        group.create_task(tick())
        await clock.advance(10.0)

    assert ticks == [1.0, 2.0, 3.0]


async def test_a_jump_wakes_nobody_until_time_goes_on() -> None:
    clock = FakeClock(now=0.0)

    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(clock.sleep(1.0))
        await asyncio.sleep(0)
        clock.jump(60.0)
        await asyncio.sleep(0)
        after_jump = (sleeper.done(), clock.num_sleepers)
        await clock.advance(0.0)

    assert after_jump == (False, 1)
    assert clock.num_sleepers == 0
    assert clock.monotonic() == 60.0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()

    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(clock.sleep(1.0))
        await asyncio.sleep(0)
        sleeper.cancel()
        await clock.advance(2.0)

    assert sleeper.cancelled()
