"""The log as an event loop uses it: appends cost no wait; a thread of its own writes them.

The loop's thread appends, asks and waits. The log's thread owns the files (``committing``).
What both touch are single numbers, which one of them writes.
"""

import asyncio
import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, final

from paramfleet_pserver.durability.log.committing import Committer, Continuation
from paramfleet_pserver.durability.log.core.batching import Buffer, CommandQueue
from paramfleet_pserver.durability.log.core.layout import MAX_COMMAND_BYTES
from paramfleet_pserver.durability.log.disk import Disk, is_full
from paramfleet_pserver.durability.log.folder import LogFolder
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_shared.errors.logs import (
    CommandTooLargeError,
    DiskFailingError,
    DiskFullError,
    LogBehindError,
    LogClosedError,
    LogTermError,
)
from paramfleet_shared.system.clock import Clock

__all__ = ["LogState", "LogWriter"]

LogState = Literal["open", "behind", "full", "failing", "closed"]
"""``behind``: as much waits as may; ``full``, ``failing``: the disk refuses, and is tried
again."""


@final
class LogWriter:
    """Appends commands to a log; made by ``OpenedLog.continue_with``.

    All methods belong to the thread of the event loop.

    Args:
        folder: Held by this process; closed with the writer.
        start: Where the log is continued.
        term: Of the commands that are appended first.
        settings: The log's settings.
        clock: Measures the time between syncs.
        disk: The calls of the system.

    Raises:
        LogTermError: if the log holds commands of a higher term.
    """

    def __init__(
        self,
        folder: LogFolder,
        start: Continuation,
        *,
        term: int,
        settings: LogSettings,
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._term = start.term
        self.begin_term(term)
        self._queue = CommandQueue(position=start.durable, batch_bytes=settings.batch_bytes)
        self._committer = Committer(folder, self._queue, start, settings, disk)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._work = threading.Event()
        self._closing = threading.Event()
        self._remove_before = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_progress: Callable[[], None] | None = None
        self._order = itertools.count()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._num_abandoned = 0

    @property
    def path(self) -> Path:
        """Return the log's folder."""
        return self._folder.path

    @property
    def position(self) -> int:
        """Return the position of the last command appended; the first one has 1."""
        return self._queue.position

    @property
    def durable_position(self) -> int:
        """Return up to which position all commands are on the disk."""
        return self._committer.durable

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the commands that aren't on the disk."""
        return self._queue.waiting_bytes

    @property
    def fault(self) -> OSError | None:
        """Return what the disk refuses with; None if it doesn't."""
        return self._committer.fault

    @property
    def state(self) -> LogState:
        """Return how the log is."""
        if self._closing.is_set():
            return "closed"
        if self.fault is not None:
            return "full" if is_full(self.fault) else "failing"
        return "behind" if self.waiting_bytes >= self._settings.max_waiting_bytes else "open"

    def start(self, on_progress: Callable[[], None] | None = None) -> None:
        """Begin to write; to be called in the event loop, once.

        Args:
            on_progress: Called in the loop when ``durable_position`` or ``state`` may have
                changed.
        """
        self._loop, self._on_progress = asyncio.get_running_loop(), on_progress
        if self._queue.waiting_bytes:
            self._work.set()
        self._thread.start()

    def check(self, num_bytes: int = 0) -> None:
        """Pass if a command of so many bytes can be appended now, and will be written soon.

        Raises:
            LogClosedError: if the log is closed.
            DiskFullError: if the disk has no room.
            DiskFailingError: if the disk refuses to write.
            LogBehindError: if too much waits.
            CommandTooLargeError: if a command can't have so many bytes.
        """
        if self.fault is not None:
            fault = DiskFullError if is_full(self.fault) else DiskFailingError
            raise fault(path=str(self.path), reason=str(self.fault)) from self.fault
        self._check_size(num_bytes)

    def append(self, *parts: Buffer) -> int:
        """Add a command, and return its position; it is written by and by.

        A command for which ``check`` passed is accepted as long as the loop does nothing else
        between.

        Args:
            parts: Its bytes, one part behind the other. They must not change before it is
                durable.

        Raises:
            LogClosedError: if the log is closed.
            LogBehindError: if too much waits.
            CommandTooLargeError: if it has more than ``MAX_COMMAND_BYTES``.
        """
        self._check_size(sum(memoryview(part).nbytes for part in parts))
        position = self._queue.append(self._term, parts)
        self._work.set()
        return position

    def begin_term(self, term: int) -> None:
        """Give another term to what is appended from now on; terms never fall.

        Raises:
            LogTermError: if it is lower than the one before.
        """
        if term < self._term:
            raise LogTermError(path=str(self.path), found=self._term, term=term)
        self._term = term

    async def durable(self, position: int) -> None:
        """Wait until all commands up to a position are on the disk.

        Raises:
            LogClosedError: if the log is closed before.
            CancelledError: if the wait was given up.
        """
        if position <= self.durable_position:
            return
        if self._closing.is_set() or self._loop is None:
            raise self._closed()
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, (position, next(self._order), future))
        self._announce()  # the thread may have come that far meanwhile
        try:
            await future
        except asyncio.CancelledError:
            self._forget_abandoned()
            raise

    def truncate(self, before: int) -> None:
        """Let the thread remove the segments whose commands are all before a position."""
        self._remove_before = max(self._remove_before, before)
        self._work.set()

    async def close(self) -> None:
        """Write what waits, unless the disk refuses, and give the folder back.

        Before ``start`` nothing is written.
        """
        self._closing.set()
        self._work.set()
        if self._loop is None:
            self._committer.close()
        else:
            await asyncio.to_thread(self._thread.join)
            self._announce()
            for _, _, future in self._waiters:
                if not future.done():
                    future.set_exception(self._closed())
            self._waiters.clear()
        self._folder.close()

    def turn(self) -> None:
        """Do what the thread does each time: write, sync, remove."""
        self._committer.turn()
        with contextlib.suppress(OSError):  # it is tried again with the next turn
            self._committer.remove_before(self._remove_before)

    def _check_size(self, num_bytes: int) -> None:
        """Pass if the queue takes a command of so many bytes.

        Raises:
            LogClosedError: if the log is closed.
            LogBehindError: if too much waits.
            CommandTooLargeError: if a command can't have so many bytes.
        """
        if self._closing.is_set():
            raise self._closed()
        if num_bytes > MAX_COMMAND_BYTES:
            raise CommandTooLargeError(num_bytes=num_bytes, limit_bytes=MAX_COMMAND_BYTES)
        waiting, limit = self.waiting_bytes, self._settings.max_waiting_bytes
        if waiting and waiting + num_bytes > limit:  # a command alone is always taken
            raise LogBehindError(
                path=str(self.path),
                num_bytes=num_bytes,
                waiting_bytes=waiting,
                limit_bytes=limit,
            )

    def _closed(self) -> LogClosedError:
        return LogClosedError(path=str(self.path), position=self.durable_position)

    def _run(self) -> None:
        """Be the log's thread."""
        try:
            self._write_until_closed()
        except BaseException as error:
            self._committer.fault = OSError(f"its thread has ended: {error!r}")
            raise

    def _write_until_closed(self) -> None:
        while not self._closing.is_set():
            self._work.wait()
            self._work.clear()
            begun = self._clock.monotonic()
            self._turn_and_tell()
            pause = self._settings.sync_every_s
            if self.fault is not None:
                pause = self._settings.retry_s
                self._work.set()
            self._closing.wait(max(0.0, begun + pause - self._clock.monotonic()))
        self._turn_and_tell()
        self._committer.close()

    def _turn_and_tell(self) -> None:
        before = (self.durable_position, self.state)
        self.turn()
        if before != (self.durable_position, self.state) and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended without `close`
                self._loop.call_soon_threadsafe(self._announce)

    @property
    def num_waiting(self) -> int:
        """Return how many waits are kept."""
        return len(self._waiters)

    def _forget_abandoned(self) -> None:
        """Drop waits that were given up, once they are the most: the disk may be long away."""
        self._num_abandoned += 1
        if 2 * self._num_abandoned > len(self._waiters):
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)
            self._num_abandoned = 0

    def _announce(self) -> None:
        """Wake up who waits for what is durable now."""
        while self._waiters and self._waiters[0][0] <= self.durable_position:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)
        if self._on_progress is not None:
            self._on_progress()
