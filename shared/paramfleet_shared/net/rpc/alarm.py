"""Deadlines of many futures on one timer of the event loop.

A timer of its own for every call costs more than the rest of a small call's
book-keeping, and nearly all of them are cancelled.
"""

import asyncio
from typing import Any

from paramfleet_shared.system.clock import SystemClock

__all__ = ["Alarm", "DeadlinePassedError"]

_SLACK_S = 0.001  # timers of uvloop count milliseconds


class DeadlinePassedError(Exception):
    """What a future gets whose time is over."""


class Alarm:
    """Wakes futures that are not done at their deadlines.

    The timer is set for the earliest deadline ever asked for, and looks for the
    next one only when it rings. Deadlines are by the machine's clock: a busy uvloop's own is
    behind, so that its timers ring early.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._deadlines: dict[asyncio.Future[Any], float] = {}
        self._rings_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[Any], timeout_s: float) -> None:
        """Give ``future`` a ``DeadlinePassedError`` after ``timeout_s``."""
        deadline = self._clock.monotonic() + timeout_s
        self._deadlines[future] = deadline
        if deadline < self._rings_at:
            self._set(deadline)

    def drop(self, future: asyncio.Future[Any]) -> None:
        """Forget a future."""
        self._deadlines.pop(future, None)

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.clear()

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = deadline
        self._timer = self._loop.call_later(deadline - self._clock.monotonic(), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        now = self._clock.monotonic() + _SLACK_S
        for future in [f for f, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[future]
            if not future.done():
                future.set_exception(DeadlinePassedError)
        if self._deadlines:
            self._set(min(self._deadlines.values()))
