"""The one background thread of a worker, and the event loop that it owns.

All network traffic of a training process runs here. The training thread hands
in coroutines and waits for their results, or lets them run beside the training;
it never touches a socket. When a member of the job dies, every wait ends at once
with that member's name.

Start: ``start`` runs the thread and its loop; ``join`` makes this process a member.
Stop: ``close`` ends the heartbeat, closes what was opened, and joins the thread.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.config import JobSettings
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError, UnavailableError

__all__ = ["Communicator", "CommunicatorClosedError"]

T = TypeVar("T")


class CommunicatorClosedError(UnavailableError):
    """The background thread was asked for something after it had stopped."""

    code = "unavailable.communicator_closed"
    retryable = False

    def __init__(self) -> None:
        super().__init__(
            "this worker has left the job: call fleet.* before fleet.stop_worker()"
        )


class Communicator:
    """Runs coroutines for the training thread on a loop of its own."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="paramfleet-communicator", daemon=True
        )
        self._session: JobSession | None = None
        self._failure: FleetError | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def session(self) -> JobSession:
        """The membership in the job; ``join`` made it.

        Raises:
            CommunicatorClosedError: before ``join``.
        """
        if self._session is None:
            raise CommunicatorClosedError
        return self._session

    def start(self) -> None:
        """Start the thread; returns when its loop runs."""
        self._thread.start()
        self._ready.wait()

    def join(self, settings: JobSettings, *, index: int | None) -> None:
        """Become a worker of the job and keep its lease from now on.

        Raises:
            FleetError: as ``JobSession.join`` does.
        """

        async def join() -> None:
            session = await JobSession.join(
                settings, role="worker", index=index, endpoint="", admin="", clock=self.clock
            )
            self._session = session
            self.spawn(self._watch(session))

        self.wait(join())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result; the training thread blocks.

        Raises:
            FleetError: what ``work`` raises, or the failure of the job as soon as it is known.
        """
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` on the loop beside the training.

        Raises:
            CommunicatorClosedError: after ``close``.
        """
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise CommunicatorClosedError
        return asyncio.run_coroutine_threadsafe(self._interruptible(work), self._loop)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that lives until ``close``; called on the loop."""
        assert self._tasks is not None, "the loop runs"
        self._tasks.create_task(work)

    def fail(self, error: FleetError) -> None:
        """End every wait, now and later, with ``error``; called on the loop."""
        if self._failure is None:
            self._failure = error
            for task in self._waiting:
                task.cancel()

    def close(self) -> None:
        """Stop the loop and join the thread; a second call does nothing."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._tasks:
            self._ready.set()
            await self._stop.wait()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        if self._failure is not None:
            work.close()
            raise self._failure
        task = asyncio.current_task()
        assert task is not None, "runs as a task"
        self._waiting.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self._waiting.discard(task)

    async def _watch(self, session: JobSession) -> None:
        """Keep the lease; a failed job fails every wait."""
        try:
            await session.run()
        except FleetError as error:
            self.fail(error)
