"""No connection to Redis outlives its store, whenever a call or a close is cancelled."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any, cast

import pytest
from redis import Redis

from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

ANSWER = "return {1}"
MOST = 100
"""Awaits of one call, at most."""

Place = tuple[str, Callable[[], int]]
"""The address of a Redis, and how many connections it has beside the one that asks."""


class AtAwait:
    """Does something at one await of a coroutine.

    Args:
        at: At which one; 0 is the first.
        act: What is done then.
        late: Whether it is done when what is awaited is there, and before the task goes on.
    """

    def __init__(self, at: int, act: Callable[[], object], *, late: bool) -> None:
        self._at = at
        self._act = act
        self._late = late
        self.was_reached = False

    async def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine to its end."""
        await self._steps(work)

    @coroutine
    def _steps(self, work: Coroutine[Any, Any, object]) -> Generator[Any, Any, None]:
        awaited, error = 0, cast("BaseException | None", None)
        while True:
            try:
                future = work.send(None) if error is None else work.throw(error)
            except StopIteration:
                return
            if awaited == self._at:
                self.was_reached = True
                if self._late and future is not None:
                    future.add_done_callback(lambda _: self._act())
                else:
                    self._act()
            awaited, error = awaited + 1, None
            try:
                yield future
            except BaseException as raised:  # noqa: BLE001 (it is the coroutine's)
                error = raised


async def cancelled(at: int, work: Coroutine[Any, Any, object], *, late: bool) -> bool:
    """Cancel work at one await; return whether it came so far."""
    task = asyncio.current_task()
    assert task is not None
    steps = AtAwait(at, task.cancel, late=late)
    with contextlib.suppress(asyncio.CancelledError):
        await steps.run(work)
    return steps.was_reached


async def closed_in_a_call(store: RedisStore, at: int, *, late: bool) -> bool:
    """Close a store at one await of a call; return whether the call came so far."""
    async with asyncio.TaskGroup() as tasks:
        steps = AtAwait(at, lambda: tasks.create_task(store.close()), late=late)
        with contextlib.suppress(NoRedisError):
            await steps.run(store.run(ANSWER, [], []))
    await store.close()
    return steps.was_reached


@pytest.fixture(params=["socket", "port"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Return where a Redis is, and how many connections it has."""
    bind = None if request.param == "socket" else "127.0.0.1"
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind=bind)
    await server.start()
    admin = Redis.from_url(server.admin_url)

    def count() -> int:
        return len(cast("list[Any]", admin.client_list())) - 1

    yield server.admin_url, count
    admin.close()
    server.stop()


def store_at(url: str) -> RedisStore:
    return RedisStore(url, clock=SystemClock(), timeout_s=LATE_S)


async def none_is_left(count: Callable[[], int]) -> None:
    """Wait until a Redis sees none of our connections any more; what was lost is a warning."""
    gc.collect()
    async with asyncio.timeout(LATE_S):
        while count():  # noqa: ASYNC110 (a server sees an end by itself)
            await asyncio.sleep(0)


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_may_be_cancelled_at_any_await(place: Place, late: bool) -> None:
    url, count = place
    for at in range(MOST):
        store = store_at(url)
        was_reached = await cancelled(at, store.run(ANSWER, [], []), late=late)
        await store.close()
        del store
        await none_is_left(count)
        if not was_reached:
            return
    pytest.fail("a call never ends")


@pytest.mark.parametrize("late", [False, True])
async def test_a_close_may_be_cancelled_at_any_await(place: Place, late: bool) -> None:
    url, count = place
    for at in range(MOST):
        store = store_at(url)
        await asyncio.gather(*(store.run(ANSWER, [], []) for _ in range(2)))
        was_reached = await cancelled(at, store.close(), late=late)
        del store
        await none_is_left(count)
        if not was_reached:
            return
    pytest.fail("a close never ends")


@pytest.mark.parametrize("late", [False, True])
async def test_a_store_may_be_closed_at_any_await_of_a_call(place: Place, late: bool) -> None:
    url, count = place
    for at in range(MOST):
        was_reached = await closed_in_a_call(store_at(url), at, late=late)
        await none_is_left(count)
        if not was_reached:
            return
    pytest.fail("a call never ends")


async def test_a_call_after_the_close_leaves_nothing_open(place: Place) -> None:
    url, count = place
    store = store_at(url)
    await store.close()

    answer = await store.run(ANSWER, [], [])

    assert answer == [1]
    del store
    await none_is_left(count)
