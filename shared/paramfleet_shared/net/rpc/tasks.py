"""Tasks that belong to an object and end with it.

A protocol callback cannot await, so that a handler which does must become a
task. This is the only place where ``rpc`` starts tasks.
"""

import asyncio
import threading
from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

__all__ = ["TaskSet", "abandon", "begun", "begun_here", "hop", "is_here", "rest_on_loop"]

T = TypeVar("T")

_HOP = object()
_thread = threading.local()


class TaskSet:
    """Owns the tasks it starts; whoever owns it awaits ``close``.

    A task's own error is its starter's business: coroutines given here answer
    or return what went wrong rather than raise.

    Args:
        group: Gets the tasks and what they raise; without it no task may raise.
    """

    def __init__(self, group: asyncio.TaskGroup | None = None) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``coroutine`` as a task of this set."""
        owner = self._group or asyncio.get_running_loop()
        task = owner.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


def abandon(pending: object) -> None:
    """End work that has perhaps not begun, and that nobody will wait for.

    A coroutine that is dropped before its first step is reported as an error. One that holds
    another has a ``close`` that ends that, too.
    """
    close = getattr(pending, "close", None)
    if close is not None:
        close()


def begun(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run ``work`` until it first waits; return its result, or what is still to await.

    Work that never waits costs no task. What comes before the first wait runs outside of
    any, and must not ask for one, as ``asyncio.timeout`` does.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return _rest(work, waits_for)


@coroutine
def hop() -> Generator[Any, Any, None]:
    """Go on on the event loop, in work that ``begun_here`` runs; to be awaited."""
    yield _HOP


def is_here() -> bool:
    """Return whether the calling work is run by ``begun_here``: no event loop is at hand."""
    return getattr(_thread, "is_here", False)


def begun_here(work: Coroutine[Any, Any, T]) -> tuple[T] | None:
    """Run ``work`` in this thread, which has no event loop.

    Returns:
        Its result; None if it awaited ``hop``, to go on by ``rest_on_loop``.
    """
    _thread.is_here = True
    try:
        asked = work.send(None)
    except StopIteration as end:
        return (end.value,)
    finally:
        _thread.is_here = False
    assert asked is _HOP, "work that begins here waits for nothing before it has hopped"
    return None


async def rest_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Go on with work that has hopped."""
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return await _steps(work, waits_for)


async def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> T:
    """Go on with work that has begun to wait."""
    return await _steps(work, waits_for)


@coroutine
def _steps(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Do what ``await work`` would do from here on."""
    while True:
        try:
            try:
                got = yield waits_for
            except BaseException as error:  # noqa: BLE001 (whatever it is, it is for the work)
                waits_for = work.throw(error)
            else:
                waits_for = work.send(got)
        except StopIteration as end:
            result: T = end.value
            return result
