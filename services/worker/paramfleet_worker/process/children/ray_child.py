"""The launcher's end of a process that a Ray actor has."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.terminal.console import Console

__all__ = ["RayChild"]

_LOST = -int(signal.SIGKILL)
"""What a process counts as that was lost with its actor or node."""


class RayChild:
    """As ``Child``, elsewhere. Belongs to the task that runs the launcher's event loop.

    Args:
        name: Its place in the job.
        hand: The actor, a ``Hand``.
        words: What Python is given.
        given: Variables that go before those of the node.
        log: File that gets everything the process writes; an old one is replaced.
        console: Where its lines are shown.

    Raises:
        OSError: if the log can't be written.
    """

    def __init__(
        self,
        name: ProcessName,
        *,
        hand: Any,
        words: Sequence[str],
        given: Mapping[str, str],
        log: Path,
        console: Console,
    ) -> None:
        self.name = name
        self.log = log
        self.pid = 0
        """Its id on its node; 0 until it runs."""
        self._hand = hand
        self._console = console
        self._log = LogFile(log, console.say)
        self._started = hand.start.remote(
            (name.role, name.index), list(words), dict(given), str(Path.cwd())
        )
        self._code: int | None = None
        self._told = False
        self._drained = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Tell whether ``poll`` has seen its end."""
        return self._told

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        self._told = self._code is not None
        return self._code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, unless the process has ended."""
        if self._code is None:
            self._hand.send.remote(int(number))

    async def follow(self, reap: Callable[[], None]) -> None:
        """Show what the process writes until it ends; then have it noticed."""
        from ray.exceptions import RayError  # noqa: PLC0415 -- an extra

        try:
            self.pid = await self._started
            while self._code is None:
                for kind, content in await self._hand.news.remote():
                    self._take(kind, content)
        except (RayError, OSError) as error:
            self._take("line", f"its Ray actor is gone: {error}".partition("\n")[0].encode())
            self._code = _LOST
        if self.name == ProcessName("worker", 0):
            self._console.end_result()
        self._drained.set()
        reap()

    async def drained(self, timeout_s: float) -> None:
        """Wait until everything it wrote is in the log, for ``timeout_s`` at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)

    @property
    def last_words(self) -> str:
        """Return nothing: its lines come without their stream."""
        return ""

    @property
    def ending(self) -> None:
        """Return nothing: it may write on another node."""

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines of the log."""
        return self._log.last_lines(num_lines)

    def close(self) -> None:
        """Write no more."""
        self._log.close()

    def _take(self, kind: str, content: Any) -> None:
        if kind == "exit":
            self._code = content
        elif kind == "out":
            self._log.write(content)
            self._console.result(content)
        else:
            self._log.write(content + b"\n")
            self._console.line(self.name, content)
