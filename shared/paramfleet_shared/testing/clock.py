"""Time that moves when a test says so."""

import asyncio
import heapq
import itertools

__all__ = ["FakeClock"]

_TURNS = 10
"""Turns of the event loop given to a woken task before time moves on."""


class FakeClock:
    """A clock that stands still between two calls of ``advance``."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Return the time that ``advance`` has reached."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task until ``advance`` has moved time by ``seconds``."""
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    @property
    def num_sleepers(self) -> int:
        """Return how many tasks sleep."""
        return sum(not wake.done() for _, _, wake in self._sleepers)

    def jump(self, seconds: float) -> None:
        """Move time without waking anybody, as a paused machine sees it."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Move time, and wake each sleeper at its moment and in order."""
        until = self._now + seconds
        await _let_others_run()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, wake = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            if not wake.done():
                wake.set_result(None)
            await _let_others_run()
        self._now = until


async def _let_others_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
