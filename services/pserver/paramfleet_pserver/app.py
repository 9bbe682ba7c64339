"""One pserver, from its start to the end of its job.

Start, in this order: the owner threads; the admin address; the tables' kernels, compiled where
this machine lacks them; the data plane, whose requests wait; the job (join, then heartbeats
without a pause); the tables' shards, known from the index; the checkpoint, if one is asked
for; then the requests go on.

Stop, in this order: requests that wait are answered with the job's failure, if there is
one; the data plane drains and closes; the member leaves the job; the admin address
closes; the owner threads end.

The end comes when the job has finished, also if that was before this process came, when it
failed, or with SIGTERM, which ends the job, because no job can go on without a part of its
tables.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.hosting.alone import join_alone
from paramfleet_pserver.hosting.folders import seems_to_return
from paramfleet_pserver.hosting.group import GroupParts, HostedGroup
from paramfleet_pserver.hosting.host import Host
from paramfleet_pserver.hosting.measuring import Measures
from paramfleet_pserver.tables.blocks import NewShard, in_memory
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.discovery.errors import JobFinishedError
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.kept_arguments import keep_arguments
from paramfleet_shared.net.access import gate_of
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.secret import open_warnings
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.settings.config import Resolved, SettingError, read_environment, resolve
from paramfleet_shared.settings.failpoints import arm
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.system.gc_tuning import freeze, keep_tidy
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.system.process_names import name_process
from paramfleet_shared.system.processes.started import changed_variables
from paramfleet_shared.tables.kernels.basics.readiness import (
    COMPILING,
    WARM,
    compiling,
    is_cold,
)
from paramfleet_shared.tables.warm import warm_usual
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry, setup_logging
from paramfleet_shared.telemetry.otel import tracing_of

__all__ = ["PServer", "run", "serve"]

log = logging.getLogger(__name__)

MEASURE_PERIOD_S = 1.0
"""Seconds between two looks at the tables for the metrics."""

SAMPLED_LOOKS = 10
"""Of so many looks one is at some rows, too."""

COMPILE_POLL_S = 0.05
"""Seconds between two looks at whether the kernels are compiled."""

TERMINATED = 128 + signal.SIGTERM
"""Exit status of a pserver that leaves its training to the next process."""

OF_WORKERS = ("CUDA_", "KMP_", "MKL_", "OMP_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH")
"""Begins of variables that a script may set for its training, and a pserver doesn't read."""

STATES = {
    "compiling": "compiling the table kernels",
    "joining": "joining the job",
    "loading": "loading the tables",
    "restoring": "restoring the tables that the former process had",
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
    given, environment = dict(arguments or {}), read_environment()
    resolved = resolve(
        PServerSettings, section="pserver", arguments=given, environment=environment
    )
    _log_as(resolved.value, resolved.value.index)
    if resolved.value.arguments_file:
        _keep(Path(resolved.value.arguments_file), given, changed_variables(environment))
    serve(resolved)


def _keep(path: Path, given: Mapping[str, Any], changed: frozenset[str] | None) -> None:
    """Write what the script gave, unless the next process needs the script for more than that.

    Args:
        path: The file.
        given: The arguments.
        changed: Variables of the environment that the script has changed; None if unknown.
    """
    if changed is None:
        reason = "the system doesn't say whether the script has changed the environment"
    elif needed := sorted(name for name in changed if not name.startswith(OF_WORKERS)):
        reason = f"the script has changed {', '.join(needed)}"
    else:
        try:
            reason = "" if keep_arguments(path, given) else "its arguments can't be kept"
        except OSError as error:
            reason = str(error)
    if reason:
        log.info("pserver.needs_script", extra={"reason": reason})


def serve(resolved: Resolved[PServerSettings]) -> None:
    """Serve until the job has ended, on a loop of its own. Raises as ``run``."""
    settings = resolved.value
    _log_as(settings, settings.index)
    arm(read_environment(), role="pserver", chaos=settings.chaos, index=settings.index)
    raise_open_files()
    for line in resolved.lines():
        log.debug("settings", extra={"setting": line})
    for warning in open_warnings(resolved.origins, settings, read_environment()):
        log.warning(warning)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = PServer(settings, clock=SystemClock(), config=resolved.shown())
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
        self._start_cpu_s = time.process_time()
        self._group: HostedGroup | None = None
        self._host: Host | None = None
        """Of planned groups; else it is the one group."""
        self._draining: asyncio.Task[None] | None = None
        self._metrics = MetricRegistry()
        self._service = ServiceTimes(clock.monotonic)
        self._measures = Measures(self._metrics, self._service, self._groups)
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
        except JobFinishedError as error:  # it was started again a moment too late
            log.info("pserver.not_needed", extra={"reason": str(error)})
        log.info("pserver.stopped")
        if self._host is not None and self._is_stopping and not self._is_done(self._host):
            raise SystemExit(TERMINATED)
        if self._group is not None and self._group.folder is not None and self._group.goes_on:
            raise SystemExit(TERMINATED)  # whoever starts processes is to start it again

    def status(self) -> dict[str, Any]:
        """Return what an operator may ask, in plain values."""
        group, host = self._group, self._host
        member = None if host is None else host.session.member
        if group is not None and group.session is not None:
            member = group.session.member
        return {
            "role": "pserver",
            "state": self._state,
            "index": member.index if member is not None else None,
            "incarnation": member.incarnation if member is not None else None,
            "uptime_s": round(self._clock.monotonic() - self._started_at, 3),
            "service": self._service.facts(),
            **(host or group or _Nothing()).facts(),
        }

    def ready(self) -> tuple[bool, str]:
        """Return whether requests are answered, and why not."""
        return self._state == "serving", STATES[self._state]

    @property
    def _state(self) -> str:
        if self._host is not None:
            return "serving" if self._host.is_serving else "loading"
        if self._is_compiling:
            return "compiling"
        if self._group is None or self._group.session is None:
            return "joining"
        return self._group.state

    def _groups(self) -> Sequence[HostedGroup]:
        if self._host is not None:
            return self._host.groups
        return () if self._group is None else (self._group,)

    async def _serve(self) -> None:
        settings = self._settings
        async with AsyncExitStack() as stack:
            tracing = tracing_of(settings, "pserver")
            if tracing is not None:
                stack.callback(tracing.close)
            owners = Owners(settings.num_owners)
            stack.push_async_callback(owners.close)
            admin = self._new_admin()
            stack.push_async_callback(admin.close)
            parts = GroupParts(
                settings=settings,
                clock=self._clock,
                owners=owners,
                service=self._service,
                tracing=tracing,
                new_shard=await self._new_shards(stack, owners),
            )
            is_planned = settings.hosting == "planned"
            serve = self._serve_planned if is_planned else self._serve_alone
            await serve(stack, parts, admin)

    async def _new_shards(self, stack: AsyncExitStack, owners: Owners) -> NewShard:
        """Return what makes the shards of tables, for their owners.

        Raises:
            SettingError: if the folder for cold rows can't be used.
        """
        settings = self._settings
        if not settings.memory_budget_bytes and not settings.table_budgets:
            return in_memory
        from paramfleet_pserver.durability import cold_rows as cold  # noqa: PLC0415 - few need it

        try:
            folder = await asyncio.to_thread(cold.ColdFolder, Path(settings.cold_folder))
        except OSError as error:
            rule = f"a folder that can be written ({error.strerror})"
            name = "cold_dir" if settings.cold_dir else "data_dir"
            raise SettingError(name=name, value=settings.cold_folder, rule=rule) from error
        stack.callback(folder.remove)
        await self._compile(cold.WARM_DISK)
        await asyncio.to_thread(cold.warm_disk)
        tables = cold.ColdTables(
            folder,
            budget_bytes=settings.memory_budget_bytes,
            tables=settings.table_budgets,
            origin=self._config.get("table_memory_budgets", {}).get("origin", ""),
            when_read=owners.read_next,
        )
        return NewShard(tables.new_shard, tables.check, tables.note_tables)

    async def _serve_alone(
        self, stack: AsyncExitStack, parts: GroupParts, admin: AdminServer
    ) -> None:
        """Be the pserver of one index."""
        settings = self._settings
        group = HostedGroup(parts, index=settings.index, describe=lambda _: self.status())
        self._group = group
        stack.push_async_callback(self._leave)
        stack.push_async_callback(group.release)
        stack.push_async_callback(group.server.close)
        stack.push_async_callback(group.server.drain, settings.drain_timeout_s)
        stack.push_async_callback(group.settle_readers)
        bind = settings.bind or settings.host
        admin_port = await self._prepare(admin)
        port = await group.server.start(bind, settings.port)
        freeze()  # here: it holds the loop up, and from joining on the lease runs
        session = await join_alone(
            group,
            parts,
            endpoint=settings.advertise or join_endpoint(settings.host, port),
            admin=join_endpoint(settings.host, admin_port),
        )
        _log_as(settings, session.member.index)
        self._log_start()
        async with beside(keep_tidy(self._clock), self._measure()):
            await group.live(session)

    async def _serve_planned(
        self, stack: AsyncExitStack, parts: GroupParts, admin: AdminServer
    ) -> None:
        """Host the groups that the coordinator plans for this process."""
        settings = self._settings
        admin_port = await self._prepare(admin)
        freeze()
        host = await Host.join(parts, admin=join_endpoint(settings.host, admin_port))
        self._host = host
        stack.push_async_callback(self._leave_planned, host)
        _log_as(settings, host.session.member.index)
        self._log_start()
        async with beside(keep_tidy(self._clock), self._measure()):
            await host.live()

    def _log_start(self) -> None:
        """Log which process this is, and how long ago it had imported what it needs."""
        facts = {
            "pid": os.getpid(),
            "seconds": round(self._clock.monotonic() - self._started_at, 3),
            "cpu_s": round(self._start_cpu_s, 3),  # of the process until then
        }
        log.info("pserver.started", extra=facts)

    async def _prepare(self, admin: AdminServer) -> int:
        """Serve the admin address, and have the kernels; returns its port."""
        settings = self._settings
        port = await admin.start(settings.bind or settings.host, settings.admin_port)
        if is_cold():
            await self._compile()
        if not seems_to_return(settings):  # else a replay loads those kernels that it needs
            await asyncio.to_thread(warm_usual)  # as freeze
        return port

    def _new_admin(self) -> AdminServer:
        settings = self._settings
        tls = tls_of(settings, "pserver")
        pages = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
        return AdminServer(
            status=self.status,
            ready=self.ready,
            metrics=self._metrics,
            config=self._config,
            gate=gate_of(settings, pages),
            tls=pages,
        )

    async def _compile(self, module: str = WARM) -> None:
        """Let kernels be compiled before anybody counts on this server.

        In another process, because compiling would hold this one's event loop up.
        """
        if module == WARM:
            log.warning("pserver.compiling", extra={"doing": COMPILING})
        self._is_compiling = True
        with compiling(module) as process:
            while process.poll() is None:
                await self._clock.sleep(COMPILE_POLL_S)
        self._is_compiling = False

    async def _measure(self) -> None:
        for look in count():
            if not look % SAMPLED_LOOKS:
                self._measures.sample_rows()
            self._measures.note_tables()
            await self._clock.sleep(MEASURE_PERIOD_S)

    async def _leave(self) -> None:
        group = self._group
        if group is None or group.session is None:
            return
        stays = group.folder is not None  # for a process that is started again
        if self._is_stopping and not group.session.finished and not stays:
            await group.session.fail("stopped by SIGTERM")
        await group.session.leave()

    async def _leave_planned(self, host: Host) -> None:
        session = host.session
        lost = not host.has_drained and not host.keeps_copies
        if self._is_stopping and not session.finished and lost:
            await session.fail("stopped by SIGTERM")
        await host.close()

    @staticmethod
    def _is_done(host: Host) -> bool:
        """Return whether nothing is left to serve: all was given up, or the job has ended."""
        return host.has_drained or host.session.finished

    def _stop(self, task: asyncio.Task[Any]) -> None:
        """Begin to stop; asked again, changes nothing."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._host is None:
            task.cancel()
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain(self._host, task))

    async def _drain(self, host: Host, task: asyncio.Task[Any]) -> None:
        """Give up the groups, for as long as that may take, and end."""
        log.info("pserver.draining", extra={"groups": [group.index for group in host.groups]})
        try:
            async with asyncio.timeout(self._settings.handover_timeout_s):
                await host.drain()
        except (TimeoutError, FleetError) as error:
            log.warning("pserver.not_drained", extra={"reason": str(error) or "time is over"})
            task.cancel()


class _Nothing:
    """What a process hosts before it has a place."""

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {"tables": []}


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let endless work go on in tasks, until the block ends."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_as(settings: PServerSettings, index: int | None) -> None:
    """Show who this is in the log and in lists of processes."""
    setup_logging("pserver", index, settings.log_level, log_format=settings.log_format)
    name_process("pserver", index)
