"""What a process does about a group that waits for others, who may be dead.

It ends when the plan asks for something else: nobody has to wait for its deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from paramfleet_shared.discovery.plan import GroupPlan
from paramfleet_shared.errors.following import PlanChangedError

__all__ = ["PlannedWork"]

T = TypeVar("T")


class _Doing(NamedTuple):
    task: asyncio.Task[Any]
    is_asked_for: Callable[[GroupPlan], bool]
    """Returns whether a plan asks for it."""


class PlannedWork:
    """The work of one group, one piece at a time. Used from one event loop.

    Args:
        group: Which.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._plan = GroupPlan()
        self._doing: _Doing | None = None

    def note_plan(self, plan: GroupPlan) -> None:
        """End what a plan doesn't ask for any more."""
        self._plan = plan
        if self._doing is not None and not self._doing.is_asked_for(plan):
            self._doing.task.cancel()

    async def run(
        self,
        is_asked_for: Callable[[GroupPlan], bool],
        work: Coroutine[Any, Any, T],
        *,
        release: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Do something as long as the plan asks for it.

        Cancellation: the work is cancelled, too. If it was done just then, its result is
        released.

        Args:
            is_asked_for: Returns whether a plan does.
            work: What is done.
            release: Gives a result back that nobody gets; None where that isn't needed.

        Raises:
            PlanChangedError: if it doesn't any more.
            FleetError: what the work raises.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._doing = _Doing(task, is_asked_for)
        self.note_plan(self._plan)  # it may have changed since this was decided
        was_awaited = False
        try:
            await asyncio.wait((task,))
            was_awaited = True
        finally:
            self._doing = None
            task.cancel()
            await asyncio.wait((task,))
            is_unwanted = not was_awaited and not task.cancelled() and not task.exception()
            if is_unwanted and release is not None:
                await release(task.result())
        if task.cancelled():
            raise PlanChangedError(group=self._group)
        return task.result()
