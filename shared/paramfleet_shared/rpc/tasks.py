"""Tasks that belong to an object and end with it.

A protocol callback cannot await, so that a handler which does must become a
task. This is the only place where ``rpc`` starts tasks.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["TaskSet"]

T = TypeVar("T")


class TaskSet:
    """Owns the tasks it starts; whoever owns it awaits ``close``.

    A task's own error is its starter's business: coroutines given here answer
    or return what went wrong rather than raise.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``coroutine`` as a task of this set."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
