"""Work that is begun at once costs a task only if it has to wait."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from paramfleet_shared.net.rpc.tasks import TaskSet, begun

T = TypeVar("T")


async def plus(future: "asyncio.Future[int]", number: int) -> int:
    return number + await future


async def outcome_of(rest: Awaitable[T]) -> T:
    return await rest


def test_what_never_waits_ends_without_a_loop() -> None:
    async def work() -> int:
        return 3

    assert begun(work()) == 3


def test_an_error_before_the_first_wait_is_raised_at_once() -> None:
    async def work() -> int:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (bare on purpose)
        begun(work())


async def test_what_waits_goes_on_where_it_is_awaited() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def work() -> int:
        return await plus(first, 1) + await plus(second, 10)

    rest = begun(work())
    assert isinstance(rest, Awaitable)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outcome_of(rest))
        first.set_result(100)
        await asyncio.sleep(0)
        second.set_result(1000)

    assert task.result() == 1111


async def test_an_error_waited_for_reaches_the_work() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except KeyError:
            return "caught"
        return "missed"

    rest = begun(work())
    future.set_exception(KeyError())

    assert isinstance(rest, Awaitable)
    assert await rest == "caught"


async def test_cancelling_the_rest_cancels_the_work() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    async def work() -> None:
        try:
            await future
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    rest = begun(work())
    assert isinstance(rest, Awaitable)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outcome_of(rest))
        await asyncio.sleep(0)
        task.cancel()

    assert task.cancelled()
    assert ended == ["cancelled"]


async def test_a_set_keeps_no_task_that_has_ended_and_its_group_gets_the_errors() -> None:
    async def fail() -> None:
        raise KeyError

    tasks = TaskSet()

    async def start_all() -> None:
        nonlocal tasks
        async with asyncio.TaskGroup() as group:
            tasks = TaskSet(group)
            _ = tasks.start(asyncio.Event().wait(), name="waits")
            for _ in range(100):
                await tasks.start(asyncio.sleep(0), name="ends")
            assert len(tasks) == 1
            _ = tasks.start(fail(), name="fails")

    with pytest.raises(ExceptionGroup) as raised:
        await start_all()

    assert [type(error) for error in raised.value.exceptions] == [KeyError]
    assert len(tasks) == 0
