"""Requests that wait for a condition of training, each no longer than its deadline.

A request parks under a key and is woken by whoever makes the key's condition true,
or by the failure of the job. One that waits too long fails shortly before its own
deadline, so that its answer, which says for whom it waited, still arrives.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import Clock

__all__ = ["Parking"]

Key = TypeVar("Key", bound=Hashable)

ANSWER_TIME_S = 0.1
"""What is kept of a deadline for the answer to travel; half of it if it is shorter."""

LONGEST_WAIT_S = 600.0
"""For a request that came without a deadline."""


class Parking(Generic[Key]):
    """Futures of waiting requests by key.

    Args:
        clock: By whose time deadlines are meant.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._parked: dict[Key, set[asyncio.Future[None]]] = {}
        self._failure: FleetError | None = None

    def awaited(self) -> tuple[Key, ...]:
        """Return the keys somebody waits under."""
        return tuple(self._parked)

    async def wait(
        self, key: Key, *, deadline: float | None, late: Callable[[float], FleetError]
    ) -> None:
        """Wait until the key is woken.

        Args:
            key: What to wait for.
            deadline: Of the request, in the clock's time; None means ten minutes.
            late: Makes the error to raise, from the seconds waited.

        Raises:
            FleetError: what ``late`` makes, or the job's failure.
        """
        if self._failure is not None:
            raise self._failure
        start = self._clock.monotonic()
        left = LONGEST_WAIT_S if deadline is None else max(deadline - start, 0.0)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._parked.setdefault(key, set()).add(future)
        # Not asyncio.timeout: that takes a task, and a request's first step has none.
        alarm = loop.call_later(left - min(ANSWER_TIME_S, left / 2), _give_up, future)
        try:
            await future
        except TimeoutError:
            raise late(self._clock.monotonic() - start) from None
        finally:
            alarm.cancel()
            self._forget(key, future)

    def wake(self, keys: Iterable[Key]) -> None:
        """Let the requests under these keys go on."""
        for key in keys:
            for future in self._parked.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def fail(self, error: FleetError) -> None:
        """Fail all that wait, and all that will."""
        self._failure = error
        for key in self.awaited():
            for future in self._parked.pop(key):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, key: Key, future: asyncio.Future[None]) -> None:
        same = self._parked.get(key)
        if same is not None:
            same.discard(future)
            if not same:
                del self._parked[key]


def _give_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
