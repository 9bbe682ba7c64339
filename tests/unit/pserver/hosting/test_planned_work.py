"""What waits for others ends when the plan asks for something else."""

import asyncio

import pytest

from paramfleet_pserver.hosting.planned_work import PlannedWork
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.errors.following import PlanChangedError

ME = ProcessId(0, 1)
MINE, ANOTHERS = GroupPlan(owner=ME), GroupPlan(owner=ProcessId(1, 1))


def is_mine(plan: GroupPlan) -> bool:
    return plan.owner == ME


class Work:
    """Waits for somebody."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.answer = asyncio.Event()

    async def wait(self) -> str:
        self.began.set()
        try:
            await self.answer.wait()
        finally:
            self.ended.set()
        return "done"


async def test_work_that_is_asked_for_is_done() -> None:
    planned, work = PlannedWork(3), Work()
    planned.note_plan(MINE)
    async with asyncio.TaskGroup() as group:
        doing = group.create_task(planned.run(is_mine, work.wait()))
        await work.began.wait()
        planned.note_plan(GroupPlan(owner=ME, term=7))
        work.answer.set()

    assert doing.result() == "done"


async def test_work_ends_when_the_plan_gives_it_to_another() -> None:
    planned, work = PlannedWork(3), Work()
    planned.note_plan(MINE)
    loop = asyncio.get_running_loop()
    doing = loop.create_task(planned.run(is_mine, work.wait()))
    await work.began.wait()

    planned.note_plan(ANOTHERS)

    with pytest.raises(PlanChangedError, match="the plan of group 3 has changed"):
        await doing
    assert work.ended.is_set()


async def test_work_that_the_plan_has_ceased_to_ask_for_does_not_begin() -> None:
    planned, work = PlannedWork(3), Work()
    planned.note_plan(ANOTHERS)

    with pytest.raises(PlanChangedError):
        await planned.run(is_mine, work.wait())

    assert not work.began.is_set()


async def test_work_ends_with_who_waits_for_it() -> None:
    planned, work = PlannedWork(3), Work()
    planned.note_plan(MINE)
    loop = asyncio.get_running_loop()
    doing = loop.create_task(planned.run(is_mine, work.wait()))
    await work.began.wait()

    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing

    assert work.ended.is_set()
    planned.note_plan(ANOTHERS)  # there is nothing any more that it could end


@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_that_comes_as_its_waiter_is_cancelled_is_released(fails: bool) -> None:
    planned, released = PlannedWork(3), list[str]()
    planned.note_plan(MINE)
    loop = asyncio.get_running_loop()

    async def release(result: str) -> None:
        released.append(result)

    async def end() -> str:
        doing.cancel()  # it hasn't gone on yet when this is done
        if fails:
            raise ZeroDivisionError
        return "a session"

    doing = loop.create_task(planned.run(is_mine, end(), release=release))
    with pytest.raises(asyncio.CancelledError):
        await doing

    assert released == ([] if fails else ["a session"])


async def test_an_error_of_the_work_is_its_own() -> None:
    planned = PlannedWork(3)
    planned.note_plan(MINE)

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await planned.run(is_mine, fail())
