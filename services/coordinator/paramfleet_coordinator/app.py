"""The coordinator's life.

Start order: Redis answers; the lease is free and taken; the run is resumed or a new one
opened; rpc server; admin server; the addresses are announced. Stop order: the lease is
given back; admin server; rpc server; Redis.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from contextlib import AsyncExitStack
from dataclasses import asdict

from paramfleet_coordinator.access import RIGHTS, AuditLog
from paramfleet_coordinator.api import routes as api
from paramfleet_coordinator.api.admin_service import AdminService
from paramfleet_coordinator.api.chaos import Hurter
from paramfleet_coordinator.api.metrics import metrics_of
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_coordinator.core.barriers import Barriers
from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.core.view import JobView
from paramfleet_coordinator.routes import RpcRoutes
from paramfleet_shared.discovery.errors import (
    CoordinatorExistsError,
    JobSizeError,
    NoRedisError,
    OtherLaunchError,
)
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import MAX_RUN_ID, JobSizes, Snapshot
from paramfleet_shared.discovery.redis.openness import look_for_openness
from paramfleet_shared.discovery.redis.store import outlast, store_of
from paramfleet_shared.discovery.registry import CoordinatorRecord
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.access import gate_of
from paramfleet_shared.net.admin import AdminServer
from paramfleet_shared.net.rights import roles_of
from paramfleet_shared.net.rpc.breaking.chaos_faults import OTHERS, chaos_faults
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.rpc.server import RpcServer
from paramfleet_shared.net.secret import open_warnings, secret_of
from paramfleet_shared.net.tls import MEMBER_ROLES, tls_of
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.config import Resolved, read_environment
from paramfleet_shared.settings.failpoints import LIFE, arm
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.system.process_names import name_process
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_shared.telemetry.otel import tracing_of

__all__ = ["Coordinator", "run"]

log = logging.getLogger(__name__)

_LINGER_S = 1.5
"""Seconds a failed job's coordinator stays at least, so that members read who failed."""

_WORDS = {
    "job.placed": "every pserver serves",
    "job.training": "the training has begun",
    "job.finished": "the job has finished",
}
"""Decisions as a person reads them."""

_DRAIN_S = 1.0

_LEVELS = {
    "job.failed": logging.ERROR,
    "worker.lost": logging.WARNING,
    "worker.away": logging.WARNING,
    "job.shrunk": logging.WARNING,
    "member.silent": logging.WARNING,
    "pserver.lost": logging.WARNING,
    "process.gone": logging.WARNING,
    "group.settled": logging.WARNING,
    "group.takeover": logging.WARNING,
    "group.unprotected": logging.WARNING,
}
"""How much a decision matters; all others are INFO."""


class Coordinator:
    """One coordinator process; ``serve`` is its whole life.

    Args:
        resolved: Its settings.
        clock: Time.
        is_again: Whether it goes on in the place of one that has ended.
    """

    def __init__(
        self,
        resolved: Resolved[CoordinatorSettings],
        *,
        clock: Clock,
        is_again: bool = False,
    ) -> None:
        settings = resolved.value
        self._is_again = is_again
        self._resolved = resolved
        self._settings = settings
        self._clock = clock
        self._tick_s = settings.lease_renew_s / 2
        self._started = False
        self._addresses = dict[str, str]()
        self._tls = tls_of(settings, "coordinator")
        self._secret = secret_of(settings)
        self._store = store_of(
            settings, clock=clock, timeout_s=min(1.0, settings.lease_ttl_s / 4)
        )
        record = CoordinatorRecord(
            endpoint="", admin="", host=settings.host, pid=os.getpid(), launch=settings.launch
        )
        self._job_registry = JobRegistry(
            self._store, job=settings.job, record=record, lease_ttl_s=settings.lease_ttl_s
        )
        self._sizes = JobSizes(
            worker_num=settings.worker_num,
            server_num=settings.server_num,
            num_shards=settings.num_shards,
            elastic=settings.elastic,
            returning=settings.worker_return_s > 0 and not settings.elastic,
            server_processes=settings.server_processes,
            replicas=settings.replicas,
        )

    async def serve(self) -> int:
        """Coordinate one run of the job until it ends.

        Cancellation: the lease is given back, and a coordinator that is started again goes
        on with the job.

        Returns:
            The exit status: 0 if the job finished, 1 if it failed.

        Raises:
            NoRedisError: if Redis stays away.
            CoordinatorExistsError: if the job has a coordinator already.
            OtherLaunchError: if the job runs as another launch.
            FencedError: if another coordinator has taken over.
            JobSizeError: if the running job was started for other sizes.
        """
        try:
            await self._look_for_another_launch()
            await self._take_lease()
            for warning in (await look_for_openness(self._settings)).warnings():
                log.warning(warning)
            job = await self._open_job()
            return await self._serve_job(job)
        finally:
            await self._store.close()

    async def _look_for_another_launch(self) -> None:
        """Look whether members of another launch's run live; nothing is written.

        Its coordinator may just be stopped for a while; taking its lease would fence it.

        Raises:
            NoRedisError: if Redis stays away.
            OtherLaunchError: if a heartbeat of it comes within half a lease.
        """
        settings, job_registry = self._settings, self._job_registry
        patience_s = settings.join_timeout_s
        epoch = await outlast(
            job_registry.read_epoch, clock=self._clock, patience_s=patience_s, tells=True
        )
        record, first = await job_registry.read_run(epoch)
        own = not settings.launch or record is None or record.launch == settings.launch
        if own or not first or record is None or record.state in {"finished", "failed"}:
            return
        deadline = self._clock.monotonic() + settings.lease_ttl_s / 2
        while self._clock.monotonic() < deadline:
            await self._clock.sleep(self._tick_s)
            if (await job_registry.read_run(epoch))[1] != first:
                name = f"launch {record.launch}" if record.launch else "it was started by hand"
                holder = f"{name}, and members of its run {epoch} send heartbeats"
                raise OtherLaunchError(job=settings.job, holder=holder)

    async def _take_lease(self) -> None:
        """Wait for Redis, and for the lease of a former coordinator to end.

        Raises:
            CoordinatorExistsError: if its holder goes on renewing it.
            OtherLaunchError: if its holder, or a launcher with a valid lease, is of another
                launch.
        """
        settings = self._settings
        patience_s = settings.join_timeout_s
        deadline: float | None = None
        while True:
            holder = await outlast(
                self._job_registry.try_claim, clock=self._clock, patience_s=patience_s
            )
            if holder is None:
                return
            now = self._clock.monotonic()
            deadline = deadline or now + settings.lease_ttl_s + settings.lease_renew_s
            if now >= deadline:
                where = f"process {holder.pid} on {holder.host} ({holder.endpoint})"
                raise CoordinatorExistsError(job=settings.job, holder=where)
            await self._clock.sleep(self._tick_s)

    async def _open_job(self) -> Job:
        """Resume the latest run if it hasn't ended and has a live member; else begin one."""
        job_registry = self._job_registry
        job_registry.epoch = await self._read_epoch()
        if job_registry.epoch and await self._is_own_run() and await self._is_running():
            arrivals = await job_registry.read_arrivals()
            snapshot = await job_registry.tick()
            log.info(
                "job.resumed", extra={"job": self._settings.job, "epoch": job_registry.epoch}
            )
            job = self._new_job(Barriers(snapshot.released, arrivals))
            recorded = snapshot.job or snapshot.known
            if recorded is not None:
                job.resume(recorded)  # before anybody asks to join
            job.settle()
            return job
        job_registry.epoch += 1
        job = self._new_job(None)
        await job_registry.write_job(job.record)
        log.info("job.opened", extra={"job": self._settings.job, "epoch": job_registry.epoch})
        return job

    async def _read_epoch(self) -> int:
        """Return the latest run; 0 if there is none.

        Where Redis is empty, and a coordinator was there before, members are given the time of
        a lease to say that they are in one: Redis may have been restarted at the same time.
        """
        deadline = self._clock.monotonic() + self._settings.lease_ttl_s
        epoch = await self._job_registry.read_epoch()
        while not epoch and self._is_again and self._clock.monotonic() < deadline:
            await self._clock.sleep(self._tick_s)
            epoch = await self._job_registry.read_epoch()
        return epoch

    def _new_job(self, barriers: Barriers | None) -> Job:
        rules = JobRules(
            lease_ttl_s=self._settings.lease_ttl_s,
            lease_renew_s=self._settings.lease_renew_s,
            start_timeout_s=self._settings.start_timeout_s,
            worker_grace_s=self._settings.worker_grace_s,
            server_grace_s=self._settings.server_grace_s,
            server_return_s=self._settings.server_return_s,
            worker_return_s=self._settings.worker_return_s,
            replica_grace_s=self._settings.replica_grace_s,
        )
        return Job(
            self._sizes,
            rules=rules,
            barriers=barriers,
            launch=self._settings.launch,
            run_id=secrets.randbelow(MAX_RUN_ID) + 1,
        )

    async def _is_own_run(self) -> bool:
        """Return whether the latest run isn't what another launch left behind."""
        record, _ = await self._job_registry.read_run(self._job_registry.epoch)
        own = self._settings.launch
        return not own or record is None or record.launch == own

    async def _is_running(self) -> bool:
        """Return whether a heartbeat of the latest run comes within a lease's length.

        Raises:
            JobSizeError: if it does, and the run was started for other sizes.
        """
        first = await self._job_registry.tick()
        deadline = self._clock.monotonic() + self._settings.lease_ttl_s
        if not first.members or (first.job and first.job.state in {"finished", "failed"}):
            return False
        while self._clock.monotonic() < deadline:
            now = await self._job_registry.tick()
            if now.beats != first.beats:
                self._take_sizes(now)
                return True
            await self._clock.sleep(self._tick_s)
        return False

    def _take_sizes(self, snapshot: Snapshot) -> None:
        """Go on with the running job's sizes, which mustn't contradict those given.

        Raises:
            JobSizeError: if they do.
        """
        running = snapshot.job.sizes if snapshot.job is not None else None
        if running is None:
            return
        given = asdict(self._sizes)
        if not self._sizes.server_num:
            del given["num_shards"]  # which follow from the number of pservers
        self._sizes = running
        for name, size in given.items():
            was_open = name in {"worker_num", "server_num"} and not size
            if not was_open and size != getattr(running, name):
                raise JobSizeError(
                    job=self._settings.job,
                    name=name,
                    running=getattr(running, name),
                    given=size,
                )

    async def _serve_job(self, job: Job) -> int:
        settings = self._settings
        rpc_routes = RpcRoutes(
            job,
            self._job_registry,
            gathering=Gathering(job.sizes, settle_s=settings.settle_s),
            name=settings.job,
            clock=self._clock,
            tick_s=self._tick_s,
        )
        tls, tracing = self._tls, tracing_of(settings, "coordinator")
        server = RpcServer(
            rpc_routes.handlers(),
            name="coordinator",
            clock=self._clock,
            health=lambda: {"ok": True},
            tls=tls and tls.accepts(*roles_of(RIGHTS)),
            rights=RIGHTS,
            secret=self._secret,
            tracing=tracing,
            faults=chaos_faults(settings, self._clock)(OTHERS),
        )
        if settings.chaos:
            hurting.allow("coordinator", 0, 0, self._clock)
        view = JobView()
        service = AdminService(
            rpc_routes,
            view,
            clock=self._clock,
            checkpoint_dir=settings.checkpoint_dir,
            prometheus_url=settings.prometheus_url,
            hurter=Hurter(self._store) if settings.chaos else None,
        )
        audit_log = AuditLog(keep=self._job_registry.keep_audit)
        audit_log.restore(await self._job_registry.read_audit())
        pages = tls and tls.accepts(*MEMBER_ROLES, protocol="http/1.1")
        admin = AdminServer(
            routes=api.routes(),
            state=api.state(service, audit_log),
            status=rpc_routes.status,
            ready=lambda: (self._started, "serving" if self._started else "starting"),
            metrics=metrics_of(rpc_routes, service),
            config=self._resolved.shown(),
            gate=gate_of(settings, pages),
            tls=pages,
        )
        bind = settings.bind or settings.host
        async with AsyncExitStack() as stack:  # each step is taken even if one is cancelled
            if tracing is not None:
                stack.callback(tracing.close)
            stack.push_async_callback(server.close)
            stack.push_async_callback(server.drain, _DRAIN_S)
            stack.push_async_callback(admin.close)
            stack.push_async_callback(self._resign)
            port = await server.start(bind, settings.port)
            admin_port = await admin.start(bind, settings.admin_port)
            endpoint = join_endpoint(settings.host, port)
            at = join_endpoint(settings.host, admin_port)
            self._job_registry.announce(endpoint=endpoint, admin=at)
            scheme = "http" if tls is None else "https"
            self._addresses = {"rpc": endpoint, "admin": f"{scheme}://{at}"}
            return await self._watch(job, rpc_routes, view, audit_log)

    def _note_serving(self) -> None:
        """Log the addresses once, when they are in the registry, where members look."""
        if not self._started:
            self._started = True
            log.info("coordinator.serving", extra=self._addresses)

    async def _resign(self) -> None:
        """Give the lease back; one that can't be given back ends by itself."""
        with contextlib.suppress(FleetError):
            await self._job_registry.resign()

    async def _watch(
        self, job: Job, rpc_routes: RpcRoutes, view: JobView, audit_log: AuditLog
    ) -> int:
        """Look at the registry until the job has ended and its members know.

        Raises:
            NoRedisError: if Redis stays away.
        """
        seen_at = self._clock.monotonic()
        ended_at: float | None = None
        lost = False
        while True:
            now = self._clock.monotonic()
            try:
                decisions = await rpc_routes.look()
                self._note_serving()
                for decision in decisions:
                    level = _LEVELS.get(decision.event, logging.INFO)
                    log.log(level, decision.event, extra=dict(decision.facts))
                    words = decision.facts.get("reason") or _WORDS.get(decision.event)
                    view.note(
                        decision.event, str(words or decision.event), now=now, **decision.facts
                    )
                view.observe(rpc_routes.snapshot, now=now)
                await audit_log.flush()
                seen_at = now
                if lost:
                    log.info("registry.found")
                lost = False
            except NoRedisError as error:
                if not lost:
                    log.warning("registry.lost", extra={"reason": str(error)})
                lost = True
                if now - seen_at >= self._settings.outage_grace_s:
                    raise
            if job.has_ended:
                ended_at = now if ended_at is None else ended_at
                if self._may_end(job, ended_s=now - ended_at):
                    break
            await self._clock.sleep(self._tick_s)
        why = str(job.failure_error() or "every worker has finished")
        log.info("coordinator.ended", extra={"state": job.state, "why": why})
        return 0 if job.state == "finished" else 1

    def _may_end(self, job: Job, *, ended_s: float) -> bool:
        if job.state == "failed":
            return ended_s >= max(_LINGER_S, 3 * self._settings.lease_renew_s)
        return job.members.all_gone() or ended_s >= self._settings.finish_grace_s


def run(resolved: Resolved[CoordinatorSettings]) -> int:
    """Coordinate one run of a job; SIGTERM and SIGINT end it.

    Returns:
        The exit status: 0 if the job finished, else 1.

    Raises:
        FleetError: if it can't coordinate; the sentence says why.
    """
    settings = resolved.value
    level, log_format = settings.log_level, settings.log_format
    setup_logging("coordinator", level=level, log_format=log_format)
    name_process("coordinator")
    arm(read_environment(), role="coordinator", chaos=settings.chaos, index=0)
    raise_open_files()
    given = set(resolved.lines(given=True))
    for line in resolved.lines():
        log.log(logging.INFO if line in given else logging.DEBUG, "setting %s", line)
    for warning in open_warnings(resolved.origins, settings, read_environment()):
        log.warning(warning)
    is_again = read_environment().get(LIFE, "1") != "1"
    coordinator = Coordinator(resolved, clock=SystemClock(), is_again=is_again)
    return asyncio.run(_serve_until_signal(coordinator))


async def _serve_until_signal(coordinator: Coordinator) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "asyncio.run runs this as a task"
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, task.cancel, f"signal {name.name}")
    try:
        return await coordinator.serve()
    except asyncio.CancelledError as cancelled:
        log.warning("coordinator.stopped", extra={"why": str(cancelled)})
        return 1
