"""What a server counts of its requests."""

import asyncio
import gc

import pytest

from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_shared.net.rpc.tasks import abandon
from paramfleet_shared.testing.clock import FakeClock


async def test_requests_and_their_time_are_counted_by_operation() -> None:
    clock = FakeClock()
    times = ServiceTimes(clock.monotonic)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        return await times.counted("pull", times.now(), answer)

    began = times.now()
    await clock.advance(0.5)
    times.count("pull", began)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await clock.advance(1.5)
        answer.set_result("rows")

    assert waiting.result() == "rows"
    assert times.facts() == {"pull": [2, 2.0]}
    assert times.measure("pull", "requests") == 2.0
    assert times.measure("pull", "request_seconds") == 2.0
    assert times.measure("push", "requests") == 0.0


async def test_a_request_that_failed_was_answered_too() -> None:
    times = ServiceTimes(FakeClock().monotonic)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answer.set_exception(ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        await times.counted("push", times.now(), answer)

    assert times.facts() == {"push": [1, 0.0]}


async def test_an_answer_that_nobody_waits_for_is_ended_before_it_begins() -> None:
    """Python reports a coroutine that is dropped before its first step."""
    begun: list[str] = []

    async def serve() -> str:
        begun.append("pull")
        return "rows"

    times = ServiceTimes(FakeClock().monotonic)
    pending = times.counted("pull", times.now(), serve())
    abandon(pending)
    del pending
    gc.collect()

    assert begun == []
    assert times.facts() == {}


async def test_a_group_counts_within_its_process() -> None:
    clock = FakeClock()
    process = ServiceTimes(clock.monotonic)
    await clock.advance(2.0)
    one, other = (ServiceTimes(clock.monotonic, within=process) for _ in range(2))

    began = clock.monotonic()
    await clock.advance(0.5)
    one.count("pull", began)
    other.count("push", began, waited_s=0.25)

    assert (one.facts(), other.facts()) == ({"pull": [1, 0.5]}, {"push": [1, 0.25]})
    assert process.facts() == {"pull": [1, 0.5], "push": [1, 0.25]}
    assert (one.seconds, process.seconds) == (0.5, 2.5)
