"""A condition that several wait for, each no longer than it may."""

import asyncio

__all__ = ["Signal"]


class Signal:
    """Wakes all who wait at the moment. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Let all who wait look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is fired, or the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        # Not asyncio.timeout: that takes a task, and a request's first step has none.
        alarm = None if timeout_s is None else loop.call_later(timeout_s, _end, future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if alarm is not None:
                alarm.cancel()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
