"""The one background thread of a worker, and the event loop that it owns.

The network traffic of a training process runs here. The training thread hands
in coroutines and waits for their results, or lets them run beside the training. In
sync it begins them itself, and calls pservers on sockets of its own (``direct``). When
a member of the job dies, every wait ends at once with that member's name.

Start: ``start`` runs the thread and its loop; ``join`` makes this process a member.
Stop: ``close`` closes the admin address, ends the heartbeat, and joins the thread.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import uvloop

from paramfleet.config.settings import WorkerSettings
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import FleetError, IntegrityError, UnavailableError
from paramfleet_shared.net.rpc.connection.direct import Waker
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.rpc.tasks import begun_here, rest_on_loop
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.gc_tuning import freeze
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging, show_warnings
from paramfleet_shared.telemetry.otel import OtelTracing, tracing_of
from paramfleet_shared.values.versions import versions

if TYPE_CHECKING:  # aiohttp and redis are imported when a job is joined
    from paramfleet_shared.discovery.session import JobSession
    from paramfleet_shared.net.admin import AdminServer

__all__ = ["BackgroundError", "Communicator", "CommunicatorClosedError"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_PUBLISH_PERIOD_S = 1.0
"""Seconds between two looks at this worker's facts for the job's status."""

_LAST_WORDS_S = 3.0
"""How long a worker that ends tries to report to the job why."""


class CommunicatorClosedError(UnavailableError):
    """The background thread was asked for something after it had stopped."""

    code = "unavailable.communicator_closed"
    retryable = False
    sentence = (
        "this process is not in the job: call fleet.* after fleet.init() and before "
        "fleet.stop_worker(), and not in a forked child"
    )


class BackgroundError(IntegrityError):
    """A task of the background thread met an error that nobody had planned."""

    code = "integrity.background"
    reason: str
    sentence = "this worker's background thread failed: {reason}: please report this"


class _End(Generic[T]):
    """What one thread waits for: a ``Future`` without all that makes one costly."""

    __slots__ = ("_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None

    def succeed(self, result: T) -> None:
        """Let the thread go on."""
        self._result = result
        self._done.release()

    def fail(self, error: BaseException) -> None:
        """Let the thread go on, and raise ``error`` there."""
        self._error = error
        self._done.release()

    def wait(self) -> T:
        """Block until the end, and return or raise what it is."""
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._result


async def _tell(work: Coroutine[Any, Any, T], end: _End[T]) -> None:
    """Let a thread go on with the result of ``work``, without a round through the loop."""
    end.succeed(await work)


class Communicator:
    """Runs coroutines for the training thread on a loop of its own."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="paramfleet-communicator", daemon=True
        )
        self.tracing: OtelTracing | None = None
        """What calls are traced by; None traces none."""
        self._session: JobSession | None = None
        self._admin: AdminServer | None = None
        self._failure: FleetError | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        self._wakers: list[Waker] = []
        self._facts: Callable[[], Mapping[str, Any]] = dict
        self._followers: list[Callable[[Placement], None]] = []
        self._stop = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._pid = 0

    @property
    def session(self) -> "JobSession":
        """The membership in the job; ``join`` made it.

        Raises:
            CommunicatorClosedError: before ``join``.
        """
        if self._session is None:
            raise CommunicatorClosedError
        return self._session

    def start(self) -> None:
        """Start the thread; returns when its loop runs."""
        self._pid = os.getpid()
        self._thread.start()
        self._ready.wait()

    def join(
        self,
        settings: WorkerSettings,
        *,
        index: int | None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        admin: "AdminServer | None" = None,
    ) -> None:
        """Become a worker of the job and keep its lease from now on.

        Args:
            settings: The job's settings.
            index: The rank it must have; None for the lowest free one.
            facts: What the job's status shows of this worker, looked at once a second.
            admin: Served from now on, and advertised.

        Raises:
            FleetError: as ``JobSession.join`` does.
        """
        from paramfleet_shared.discovery.session import JobSession  # noqa: PLC0415 -- slow

        _log_as(settings, index)

        self.tracing = tracing_of(settings, "worker")
        freeze()  # here: it holds all threads up, and from joining on the lease runs

        async def join() -> None:
            session = await JobSession.join(
                settings,
                role="worker",
                index=index,
                endpoint="",
                admin=await self._start_admin(admin, settings),
                clock=self.clock,
                tracing=self.tracing,
            )
            self._session = session
            self._facts = facts
            self.spawn(session.run(after_beat=self._note_placement))
            self.spawn(self._publish())

        self.wait(join())
        member = self.session.member
        _log_as(settings, member.index)
        log.info("worker.joined", extra={"incarnation": member.incarnation})

    def wait(
        self, work: Coroutine[Any, Any, T], *, meanwhile: Callable[[], None] | None = None
    ) -> T:
        """Run ``work`` on the loop and return its result; the training thread blocks.

        Args:
            work: What to run.
            meanwhile: Called in the training thread first, beside the work.

        Raises:
            CommunicatorClosedError: after ``close``.
            FleetError: what ``work`` raises, or the failure of the job as soon as it is known.
        """
        end: _End[T] = _End()  # one with its type named takes long to make
        self._open_loop(work).call_soon_threadsafe(self._begin, work, end)
        if meanwhile is not None:
            meanwhile()
        return end.wait()

    def wait_here(
        self, work: Coroutine[Any, Any, T], *, meanwhile: Callable[[], None] = lambda: None
    ) -> T:
        """Do as ``wait``, but begin in the training thread; the loop takes over at a ``hop``.

        Args:
            work: What to run. It awaits nothing else before.
            meanwhile: Called first.

        Raises:
            CommunicatorClosedError: after ``close``.
            FleetError: as ``wait``.
        """
        self._open_loop(work)
        if self._failure is not None:
            work.close()
            self.raise_failure()
        meanwhile()
        found = begun_here(work)
        return self.wait(rest_on_loop(work)) if found is None else found[0]

    def wakes(self, waker: Waker) -> None:
        """End the waits of this one, too, when the job fails; called on the loop."""
        self._wakers.append(waker)
        if self._failure is not None:
            waker.wake()

    def follow(self, follower: Callable[[Placement], None]) -> None:
        """Call a function on the loop with the placement, whenever a heartbeat brings it."""
        self._followers.append(follower)

    def _note_placement(self) -> None:
        placement = self.session.placement
        if placement is not None:
            for follower in self._followers:
                follower(placement)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` on the loop beside the training.

        Raises:
            CommunicatorClosedError: after ``close``.
        """
        loop = self._open_loop(work)
        return asyncio.run_coroutine_threadsafe(self._interruptible(work), loop)

    def say_last(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` though everything else has failed already, and wait for it.

        Raises:
            FleetError: what ``work`` raises; it is given up after some seconds.
        """
        if self._loop is None or self._loop.is_closed() or not self.is_own:
            work.close()
            return
        limited = asyncio.wait_for(work, _LAST_WORDS_S)
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(limited, self._loop).result()

    @property
    def is_own(self) -> bool:
        """Whether this is the process that started the thread, not a fork of it."""
        return self._pid == os.getpid()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that lives until ``close``; called on the loop.

        An error in it ends every wait, now and later.
        """
        assert self._tasks is not None, "the loop runs"
        self._tasks.create_task(self._guard(work))

    def raise_failure(self) -> None:
        """Raise the failure of the job, if it is known; costs nothing."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def fail(self, error: FleetError) -> None:
        """End every wait, now and later, with ``error``; called on the loop."""
        if self._failure is None:
            self._failure = error
            for waker in self._wakers:
                waker.wake()
            for task in self._waiting:
                task.cancel()

    def close(self) -> None:
        """Stop the loop and join the thread; a second call does nothing."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self.tracing is not None:
            self.tracing.close()
            self.tracing = None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._tasks:
            self._ready.set()
            await self._stop.wait()
            if self._admin is not None:
                await self._admin.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

    def _open_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed() or not self.is_own:
            work.close()
            raise CommunicatorClosedError
        return self._loop

    def _begin(self, work: Coroutine[Any, Any, T], end: "_End[T]") -> None:
        """Run work that a thread waits for; called on the loop."""
        if self._failure is not None:
            work.close()
            end.fail(self._failure.with_traceback(None))
            return
        task = asyncio.get_running_loop().create_task(_tell(work, end))
        self._waiting.add(task)
        task.add_done_callback(partial(self._finish, work, end))

    def _finish(
        self, work: Coroutine[Any, Any, T], end: "_End[T]", task: asyncio.Task[None]
    ) -> None:
        self._waiting.discard(task)
        if task.cancelled():
            work.close()  # it may not even have begun
            failure = self._failure
            end.fail(CancelledError() if failure is None else failure.with_traceback(None))
        elif (error := task.exception()) is not None:
            end.fail(error)

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        if self._failure is not None:
            work.close()
            raise self._failure.with_traceback(None)
        task = asyncio.current_task()
        assert task is not None, "runs as a task"
        self._waiting.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure.with_traceback(None) from None
        finally:
            self._waiting.discard(task)

    async def _start_admin(self, admin: "AdminServer | None", settings: WorkerSettings) -> str:
        """Return the admin address; empty without one. A worker trains without it, too."""
        if admin is None:
            return ""
        from paramfleet_shared.net.admin import AdminPortInUseError  # noqa: PLC0415 -- slow

        try:
            port = await admin.start(settings.bind or settings.host, settings.admin_port)
        except AdminPortInUseError as error:
            log.warning("worker.no_admin", extra={"reason": str(error)})
            return ""
        self._admin = admin
        return join_endpoint(settings.host, port)

    async def mark_done(self) -> None:
        """Say that this worker has finished training, and how far it came.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        await self._publish_now()
        await self.session.mark_done()

    async def _publish(self) -> None:
        while True:
            await self._publish_now()
            await self.clock.sleep(_PUBLISH_PERIOD_S)

    async def _publish_now(self) -> None:
        await self.session.publish({**self._facts(), "versions": versions()})

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FleetError as error:
            self.fail(error)
        except Exception as error:  # the boundary of the thread's tasks
            log.exception("worker.background_failed")
            self.fail(BackgroundError(reason=f"{type(error).__name__}: {error}"))


def _log_as(settings: WorkerSettings, index: int | None) -> None:
    """Log for programs if that is asked for; for people a script sets up its own log."""
    if settings.log_format == "json":
        setup_logging("worker", index, log_format="json")
    else:
        show_warnings("worker", index)
