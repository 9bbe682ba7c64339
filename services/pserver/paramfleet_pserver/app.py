"""One pserver, from its start to the end of its job.

Start, in this order: the owner threads; the admin address; the tables' kernels, compiled where
this machine lacks them; the data plane, whose requests wait; the job (join, then heartbeats
without a pause); the tables' shards, known from the index; the checkpoint, if one is asked
for; then the requests go on.

Stop, in this order: requests that wait are answered with the job's failure, if there is
one; the data plane drains and closes; the member leaves the job; the admin address
closes; the owner threads end.

The end comes when the job has finished, when it failed, or with SIGTERM, which ends the
job, because no job can go on without a part of its tables.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from paramfleet_pserver.api.access import IssuedIncarnations
from paramfleet_pserver.api.routes import OPERATIONS, Routes
from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_pserver.gauges import (
    BODY_GAUGES,
    HELD,
    LOG_GAUGES,
    SERVICE_GAUGES,
    TABLE_GAUGES,
)
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.discovery.errors import (
    IndexTakenError,
    JobFullError,
    WrongDataFolderError,
)
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import DataFolderError, LogInUseError
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.access import gate_of
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.rpc.server import Handler, Request, RpcServer
from paramfleet_shared.net.rpc.tracing import Tracing
from paramfleet_shared.net.secret import open_warnings, secret_of
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import Resolved, read_environment, resolve
from paramfleet_shared.settings.failpoints import arm
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.system.gc_tuning import freeze, keep_tidy
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.tables.kernels.basics.readiness import COMPILING, compiling, is_cold
from paramfleet_shared.tables.warm import warm_all
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry, setup_logging
from paramfleet_shared.telemetry.otel import tracing_of
from paramfleet_shared.values.ids import Rank
from paramfleet_shared.values.versions import versions

__all__ = ["PServer", "run", "serve"]

log = logging.getLogger(__name__)

PUBLISH_PERIOD_S = 1.0
"""Seconds between two looks at the tables for the job's status."""

COMPILE_POLL_S = 0.05
"""Seconds between two looks at whether the kernels are compiled."""

SNAPSHOT_POLL_S = 0.2
"""Seconds between two looks whether a snapshot is due."""

SNAPSHOT_RETRY_S = 5.0
"""Seconds after one that failed."""

TERMINATED = 128 + signal.SIGTERM
"""Exit status of a pserver that leaves its training to the next process."""

CLAIM_PATIENCE_S = 5.0
"""Seconds that another process may still have the data folder."""

STATES = {
    "compiling": "compiling the table kernels",
    "joining": "joining the job",
    "loading": "loading the tables",
    "serving": "serving",
}
"""What a server does, by the name its status has for it."""


def run(arguments: Mapping[str, Any] | None = None) -> None:
    """Serve until the job has ended; what ``fleet.run_server()`` calls.

    Args:
        arguments: Settings by name that go before the environment's.

    Raises:
        SettingError: if a setting is wrong.
        UnknownSettingError: if nothing reads one.
        JobFailedError: if the job failed.
    """
    serve(
        resolve(
            PServerSettings,
            section="pserver",
            arguments=arguments or {},
            environment=read_environment(),
        )
    )


def serve(resolved: Resolved[PServerSettings]) -> None:
    """Serve until the job has ended, on a loop of its own. Raises as ``run``."""
    _log_as(resolved.value, resolved.value.index)
    arm(read_environment(), role="pserver", index=resolved.value.index)
    raise_open_files()
    for line in resolved.lines():
        log.debug("settings", extra={"setting": line})
    for warning in open_warnings(resolved.origins, resolved.value, read_environment()):
        log.warning(warning)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = PServer(resolved.value, clock=SystemClock(), config=resolved.shown())
        runner.run(server.run())


class PServer:
    """A pserver process's parts.

    Args:
        settings: How it runs.
        clock: Time.
        config: What its admin address shows of the settings.
    """

    def __init__(
        self, settings: PServerSettings, *, clock: Clock, config: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._config = config
        self._started_at = clock.monotonic()
        self._session: JobSession | None = None
        self._routes: Routes | None = None
        self._folder: DataFolder | None = None
        self._opened = asyncio.Event()
        self._metrics = MetricRegistry()
        self._gauges = {
            fact: self._metrics.gauge(f"table_{fact}", sentence, ["table"])
            for fact, sentence in TABLE_GAUGES.items()
        }
        self._service = ServiceTimes(clock.monotonic)
        self._is_compiling = False
        self._is_stopping = False

    async def run(self) -> None:
        """Serve until the job has ended.

        Cancellation: as SIGTERM, but raises.

        Raises:
            JobFailedError: if the job failed.
            FleetError: if this server couldn't start or load.
            SystemExit: if it was asked to end, and its training is on a disk.
            CancelledError: if it was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._stop, task)
        try:
            await self._serve()
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            task.uncancel()
        log.info("pserver.stopped")
        session = self._session
        goes_on = session is not None and not session.finished and session.failure() is None
        if self._folder is not None and goes_on:
            raise SystemExit(TERMINATED)  # whoever starts processes is to start it again

    def status(self) -> dict[str, Any]:
        """Return what an operator may ask, in plain values."""
        member = self._session.member if self._session is not None else None
        return {
            "role": "pserver",
            "state": self._state,
            "index": member.index if member is not None else None,
            "incarnation": member.incarnation if member is not None else None,
            "uptime_s": round(self._clock.monotonic() - self._started_at, 3),
            "service": self._service.facts(),
            **(self._routes.facts() if self._routes is not None else {"tables": []}),
        }

    def ready(self) -> tuple[bool, str]:
        """Return whether requests are answered, and why not."""
        return self._state == "serving", STATES[self._state]

    @property
    def _state(self) -> str:
        if self._routes is not None:
            return "serving"
        if self._is_compiling:
            return "compiling"
        return "joining" if self._session is None else "loading"

    async def _serve(self) -> None:
        settings = self._settings
        async with AsyncExitStack() as stack:
            tracing = tracing_of(settings, "pserver")
            if tracing is not None:
                stack.callback(tracing.close)
            owners = Owners(settings.num_owners)
            stack.push_async_callback(owners.close)
            tls, secret = tls_of(settings, "pserver"), secret_of(settings)
            pages = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
            admin = AdminServer(
                status=self.status,
                ready=self.ready,
                metrics=self._metrics,
                config=self._config,
                gate=gate_of(settings, pages),
                tls=pages,
            )
            stack.push_async_callback(admin.close)
            stack.push_async_callback(self._leave)
            stack.push_async_callback(self._release)
            server = RpcServer(
                {operation: self._handler(operation) for operation in OPERATIONS},
                name=f"pserver {settings.index if settings.index is not None else '?'}",
                is_named=settings.index is not None,
                clock=self._clock,
                limits=settings.limits,
                health=lambda: {"ok": True},
                tls=tls and tls.accepts("worker", "pserver", "coordinator"),
                secret=secret,
                tracing=tracing,
                nearby=settings.nearby,
            )
            self._measure(server)
            stack.push_async_callback(server.close)
            stack.push_async_callback(server.drain, settings.drain_timeout_s)
            bind = settings.bind or settings.host
            admin_port = await admin.start(bind, settings.admin_port)
            if is_cold():
                await self._compile()
            await asyncio.to_thread(warm_all)  # as freeze, below
            port = await server.start(bind, settings.port)
            freeze()  # here: it holds the loop up, and from joining on the lease runs
            self._session = await self._join(
                endpoint=settings.advertise or join_endpoint(settings.host, port),
                admin=join_endpoint(settings.host, admin_port),
                tracing=tracing,
            )
            _log_as(settings, self._session.member.index)
            server.identify(f"pserver {self._session.member.index}")
            await self._live(self._session, owners)

    async def _join(self, *, endpoint: str, admin: str, tracing: Tracing | None) -> JobSession:
        """Become a member; where the training is kept on a disk, with its folder.

        Raises:
            LogInUseError: if another process has the folder.
            JobFullError: if all places are held.
            IndexTakenError: if another live process has the index.
            WrongDataFolderError: if the folder isn't that of the index's former process.
            FleetError: as ``JobSession.join``.
        """
        settings = self._settings
        folder = await self._claimed()
        join = partial(
            JobSession.join,
            settings,
            role="pserver",
            endpoint=endpoint,
            admin=admin,
            clock=self._clock,
            tracing=tracing,
            durable=settings.durability != "none",
        )
        if folder is None:
            session = await join(index=settings.index)
        else:
            try:
                session = await join(index=folder.index, holds_run=folder.run_id)
            except (JobFullError, IndexTakenError, WrongDataFolderError):
                folder.close()
                if settings.index is not None:
                    raise
                folder = None  # it was found, and is what another run has left
                session = await join(index=None)
        self._session = session  # what follows may fail: it has to leave then
        if settings.durability != "none":
            if folder is None:
                root, index = Path(settings.data_dir), session.member.index
                folder = await asyncio.to_thread(DataFolder, root, settings.job, index)
            self._folder = folder
            await asyncio.to_thread(folder.begin, session.run_id)
            removed = await asyncio.to_thread(folder.remove_runs, but=session.run_id)
            if removed:
                log.info("pserver.data_removed", extra={"runs": removed})
        return session

    async def _claimed(self) -> DataFolder | None:
        """Return the folder of this pserver's index, or one whose process has died.

        Raises:
            LogInUseError: if another process has the folder of the index.
            OSError: if the system refuses.
        """
        settings = self._settings
        if settings.durability == "none":
            return None
        root = Path(settings.data_dir)
        if settings.index is None:
            return DataFolder.find(root, settings.job)
        deadline = self._clock.monotonic() + CLAIM_PATIENCE_S
        while True:
            try:
                return DataFolder(root, settings.job, settings.index)
            except LogInUseError:  # a process that was killed may take a moment to end
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(COMPILE_POLL_S)

    async def _release(self) -> None:
        """Close the log, and let others have the folder; after a good end it is empty."""
        if self._routes is not None:
            await self._routes.close()
        if self._folder is None:
            return
        if self._session is not None and self._session.finished:
            await asyncio.to_thread(self._folder.remove_runs)
        self._folder.close()

    async def _compile(self) -> None:
        """Let the kernels be compiled before anybody counts on this server.

        In another process, because compiling would hold this one's event loop up.
        """
        log.warning("pserver.compiling", extra={"doing": COMPILING})
        self._is_compiling = True
        with compiling() as process:
            while process.poll() is None:
                await self._clock.sleep(COMPILE_POLL_S)
        self._is_compiling = False

    async def _live(self, session: JobSession, owners: Owners) -> None:
        """Be a member until the job ends.

        Raises:
            FleetError: why it ended badly.
        """
        failure: FleetError | None = None
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(self._open(session, owners))
            publishing = tasks.create_task(self._publish(session))
            tidying = tasks.create_task(keep_tidy(self._clock))
            keeping = tasks.create_task(self._take_snapshots())
            try:
                await session.run(after_beat=partial(self._take_out_lost, session))
            except FleetError as error:
                failure = error
            publishing.cancel()
            tidying.cancel()
            keeping.cancel()
            opening.cancel()
        if not opening.cancelled() and (unopened := opening.result()) is not None:
            failure = unopened
        if failure is not None:
            log.error("pserver.failed", extra={"reason": str(failure)})
            if self._routes is not None:
                self._routes.fail(failure)
            raise failure

    async def _open(self, session: JobSession, owners: Owners) -> FleetError | None:
        """Make the tables and let the requests go on; returns why that failed."""
        store = TableStore(
            shards=_shards_of(session),
            num_shards=session.num_shards,
            num_owners=len(owners),
            limits=self._settings.table_limits,
        )
        routes = Routes(
            store,
            owners=owners,
            server=session.member.index,
            clock=self._clock,
            elastic=session.elastic,
            dirs=CheckpointDirs.of(self._settings.checkpoint_dirs),
            issued=IssuedIncarnations(
                partial(session.read_incarnation, "worker"),
                clock=self._clock,
                patience_s=2 * self._settings.lease_renew_s,
            ),
            persistence=self._persistence(session),
        )
        try:
            began = self._clock.monotonic()
            if await routes.recover():
                await self._fence(session, routes)
                took_s = round(self._clock.monotonic() - began, 3)
                log.warning(
                    "pserver.recovered", extra={"seconds": took_s, **(routes.log_facts() or {})}
                )
            elif self._settings.load:
                rows = await routes.load_from(Path(self._settings.load))
                log.info(
                    "pserver.loaded", extra={"tables": len(rows), "rows": sum(rows.values())}
                )
        except FleetError as error:
            await session.fail(str(error))
            return error
        except OSError as error:
            refused = DataFolderError(path=str(self._settings.data_dir), reason=str(error))
            await session.fail(str(refused))
            return refused
        self._routes = routes
        self._opened.set()
        log.info("pserver.serving", extra={"endpoint": session.member.endpoint})
        return None

    def _persistence(self, session: JobSession) -> Persistence | None:
        """Return where the training is kept; None for in memory alone."""
        if self._folder is None:
            return None
        return Persistence(
            self._folder.run(session.run_id),
            job=f"{self._settings.job}, run {session.run_id}",
            term=session.member.incarnation,
            waits=self._settings.durability == "sync",
            clock=self._clock,
            settings=LogSettings(segment_bytes=self._settings.log_segment_bytes),
        )

    async def _fence(self, session: JobSession, routes: Routes) -> None:
        """Refuse former incarnations of workers: the join of a newer one may have been lost.

        Raises:
            NoRedisError: if the registry stays away.
        """
        for rank in routes.ranks():
            routes.fence(rank, await session.read_incarnation("worker", rank))

    async def _take_snapshots(self) -> None:
        """Take a snapshot whenever one is due; one that fails is tried again."""
        if self._folder is None:
            return
        while True:
            pause_s = SNAPSHOT_POLL_S
            began = self._clock.monotonic()
            try:
                taken = None if self._routes is None else await self._routes.take_snapshot()
            except (FleetError, OSError) as error:
                log.warning("pserver.no_snapshot", extra={"reason": str(error)})
                pause_s = SNAPSHOT_RETRY_S
            else:
                if taken is not None:
                    took_s = round(self._clock.monotonic() - began, 3)
                    facts = {"position": taken.position, "seconds": took_s}
                    log.info("pserver.snapshot", extra=facts)
            await self._clock.sleep(pause_s)

    def _take_out_lost(self, session: JobSession) -> None:
        """Go on without the workers that an elastic job has lost."""
        routes = self._routes
        if routes is not None and routes.is_refusing:
            return  # the disk is full: with a later heartbeat
        for lost in session.lost:
            if routes is not None and routes.lose(Rank(lost.index), lost.incarnation):
                facts = {"index": lost.index, "incarnation": lost.incarnation}
                log.warning("worker.taken_out", extra=facts)

    def _measure(self, server: RpcServer) -> None:
        """Show what bodies on their way hold, and how long requests take."""
        for which, sentence in SERVICE_GAUGES.items():
            gauge = self._metrics.gauge(f"pserver_{which}", sentence, ["operation"])
            for operation in OPERATIONS:
                measure = partial(self._service.measure, operation, which)
                gauge.labels(operation).set_function(measure)
        held = self._metrics.gauge("pserver_pushes_held_seconds", HELD)
        held.set_function(lambda: self._routes.held_s if self._routes is not None else 0.0)
        for name, sentence in LOG_GAUGES.items():
            gauge = self._metrics.gauge(f"pserver_log_{name}", sentence)
            gauge.set_function(partial(self._measure_log, name))
        for name, sentence in BODY_GAUGES.items():
            gauge = self._metrics.gauge(f"pserver_{name}_bytes", sentence)
            gauge.set_function(partial(_held_by, server, name))

    def _measure_log(self, name: str) -> float:
        facts = None if self._routes is None else self._routes.log_facts()
        return 0.0 if facts is None else float(facts[name])

    async def _publish(self, session: JobSession) -> None:
        while True:
            if self._routes is not None:
                if not self._routes.is_refusing:
                    self._routes.apply_orders(session.life.orders)
                await self._routes.count_rows()
            facts = self.status()
            for table in facts["tables"]:
                for fact, gauge in self._gauges.items():
                    gauge.labels(table["name"]).set(table[fact])
            await session.publish({**facts, "versions": versions()})
            await self._clock.sleep(PUBLISH_PERIOD_S)

    async def _leave(self) -> None:
        if self._session is not None:
            stays = self._folder is not None  # for a process that is started again
            if self._is_stopping and not self._session.finished and not stays:
                await self._session.fail("stopped by SIGTERM")
            await self._session.leave()

    def _stop(self, task: asyncio.Task[Any]) -> None:
        """Begin to stop; asked again, changes nothing."""
        if not self._is_stopping:
            self._is_stopping = True
            task.cancel()

    def _handler(self, operation: str) -> Handler:
        service = self._service

        def handle(request: Request) -> Any:
            if self._routes is None:
                return self._handle_later(operation, request)
            began = service.now()
            reply = self._routes.handle(operation, request)
            if isinstance(reply, Message):
                service.count(operation, began)
                return reply
            return service.counted(operation, began, reply, waited_s=_waited_s)

        return handle

    async def _handle_later(self, operation: str, request: Request) -> Message:
        await self._opened.wait()
        assert self._routes is not None, "opened"
        reply = self._routes.handle(operation, request)
        return reply if isinstance(reply, Message) else await reply


def _log_as(settings: PServerSettings, index: int | None) -> None:
    setup_logging("pserver", index, settings.log_level, log_format=settings.log_format)


def _shards_of(session: JobSession) -> range:
    """Return this server's shards: they follow from the job's sizes alone."""
    anywhere = Placement(endpoints=("",) * session.server_num, num_shards=session.num_shards)
    return anywhere.shards_of(session.member.index)


def _waited_s(answer: Message) -> float:
    """Return for how long a request waited for other workers, if its answer says so."""
    return float(answer.fields.get("waited_s", 0.0))


def _held_by(server: RpcServer, name: str) -> float:
    held: int = getattr(server.num_held, name)
    return float(held)
