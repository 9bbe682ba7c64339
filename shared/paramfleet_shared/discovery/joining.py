"""How a process becomes a member: Redis, then the coordinator, then a place in the job."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from paramfleet_shared.discovery.errors import (
    JobFinishedError,
    NoCoordinatorError,
    NoRedisError,
)
from paramfleet_shared.discovery.records import PROCESS, JobSizes, Member
from paramfleet_shared.discovery.redis.store import RedisStore, outlast, store_of
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.errors import FleetError, OutcomeUnknownError, UnavailableError
from paramfleet_shared.net.rpc.breaking.chaos_faults import chaos_faults
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.tasks import TaskSet
from paramfleet_shared.net.rpc.tracing import Tracing, open_channel
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = [
    "Admission",
    "Entry",
    "ask_to_join",
    "coordinator_channel",
    "enter",
    "find_coordinator",
    "newcomer",
]

log = logging.getLogger(__name__)

_WITHDRAW_S = 1.0
"""Seconds that a process which is stopped waits for the answer to its request to join."""

_POLL_S = 0.1
"""Seconds between two looks for what isn't there yet."""

_CALL_TIMEOUT_S = 15.0
"""Seconds of one request to join; the coordinator may take a lease's length to answer."""


_STOPPED = "stopped while it joined the job"


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A place in a job."""

    member: Member
    sizes: JobSizes
    epoch: int
    run_id: int
    """Tells the run from every other one of the name; see ``JobRecord``."""
    known_workers: int
    """Workers that the job counts at this moment: more than any rank until now."""

    late: bool
    """Whether the training had begun before."""

    released: Mapping[str, int]
    """How often each barrier has let its workers go already."""
    arrived: Mapping[str, int] = field(default_factory=dict)
    """How often a former process of this worker has come to each barrier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A new member's place, and its connections to the registry and the coordinator."""

    admission: Admission
    store: RedisStore
    channel: Channel


async def enter(  # noqa: PLR0913 (all but the first by keyword)
    settings: JobSettings,
    *,
    role: str,
    index: int | None,
    endpoint: str,
    admin: str,
    clock: Clock,
    tracing: Tracing | None,
    durable: bool = False,
    holds_run: int = 0,
    process: str = "",
    succeeds: int = 0,
    nonce: str = "",
) -> Entry:
    """Get a place in the job: from Redis to the coordinator's answer.

    Args and errors are those of ``JobSession.join``. Only a process that is no member yet looks
    whether its launch's job has finished: to one that asks for a group a heartbeat says it.

    Cancellation: a place that it got meanwhile is given back, within some seconds; a job that
    counts on it fails with this member as the cause, or waits for a durable pserver to return.

    Raises:
        CancelledError: if it was cancelled.
    """
    deadline = clock.monotonic() + settings.join_timeout_s
    store = store_of(settings, clock=clock, timeout_s=min(1.0, settings.lease_ttl_s / 4))
    registry = Registry(store, job=settings.job)
    channel: Channel | None = None
    tasks = TaskSet()
    ended = None if process else partial(_raise_if_finished, registry, settings.launch, role)
    try:
        patience_s = settings.join_timeout_s
        await outlast(registry.ping, clock=clock, patience_s=patience_s, tells=True)
        left_s = deadline - clock.monotonic()
        channel = await coordinator_channel(
            registry,
            settings,
            role=role,
            clock=clock,
            timeout_s=left_s,
            tracing=tracing,
            ended=ended,
        )
        asking = tasks.start(
            ask_to_join(
                channel,
                settings,
                member=newcomer(
                    settings,
                    role=role,
                    endpoint=endpoint,
                    admin=admin,
                    durable=durable,
                    holds_run=holds_run,
                    process=process,
                    nonce=nonce,
                ),
                index=index,
                succeeds=succeeds,
                clock=clock,
                timeout_s=deadline - clock.monotonic(),
                ended=ended,
            ),
            name="ask to join",
        )
        try:
            admission = await asyncio.shield(asking)
        except asyncio.CancelledError:
            await _withdraw(registry, asking)
            raise
    except BaseException:
        try:
            await tasks.close()
            if channel is not None:
                await channel.close()
        finally:
            await store.close()
        raise
    return Entry(admission=admission, store=store, channel=channel)


async def find_coordinator(
    registry: Registry,
    *,
    job: str,
    clock: Clock,
    timeout_s: float,
    launch: str = "",
    ended: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Return the rpc address of the job's coordinator, when there is one.

    The coordinator of another launch than the own isn't asked: either it has died, and its
    lease is about to end, or the own coordinator is refused in a moment.

    Args:
        registry: Where it announces itself.
        job: The job's name.
        clock: For the deadline.
        timeout_s: Seconds to go on looking.
        launch: The own one; empty for none.
        ended: Called as long as there is none; raises if there will be none.

    Raises:
        NoCoordinatorError: if none announced itself in ``timeout_s``.
    """
    started = clock.monotonic()
    while True:
        reason = "none announced"
        try:
            coordinator = await registry.find_coordinator()
        except NoRedisError as error:
            coordinator, reason = None, str(error)
        if coordinator is not None and launch and coordinator.launch not in {"", launch}:
            reason = f"launch {coordinator.launch} has one, and this is {launch}"
            coordinator = None
        if coordinator is not None:
            return coordinator.endpoint
        if ended is not None:
            await ended()
        waited_s = clock.monotonic() - started
        if waited_s >= timeout_s:
            raise NoCoordinatorError(job=job, waited_s=waited_s, reason=reason)
        await clock.sleep(_POLL_S)


async def coordinator_channel(  # noqa: PLR0913 (all but two by keyword)
    registry: Registry,
    settings: JobSettings,
    *,
    role: str,
    clock: Clock,
    timeout_s: float,
    tracing: Tracing | None = None,
    ended: Callable[[], Awaitable[None]] | None = None,
) -> Channel:
    """Return a channel to the job's coordinator, wherever it is then, when there is one.

    Args:
        registry: Where it announces itself.
        settings: The job's.
        role: Of this process.
        clock: For deadlines.
        timeout_s: Seconds to go on looking.
        tracing: Make a span of each call; None makes none.
        ended: As of ``find_coordinator``.

    Raises:
        NoCoordinatorError: if none announced itself in ``timeout_s``.
        CertificateFilesError: if the settings' certificate can't be used.
        OpenJobError: if they name neither a certificate nor a secret.
    """
    account = "pserver" if role == PROCESS else role
    tls, secret = tls_of(settings, account), secret_of(settings)
    locate = partial(
        find_coordinator,
        registry,
        job=settings.job,
        launch=settings.launch,
        clock=clock,
        timeout_s=0.0,
    )
    endpoint = await locate(timeout_s=timeout_s, ended=ended)
    own = tls and tls.expects("coordinator")
    return open_channel(
        endpoint,
        tracing=tracing,
        faults=chaos_faults(settings, clock)("coordinator"),
        peer="coordinator",
        clock=clock,
        resolve=locate,
        tls=own,
        secret=secret,
    )


async def ask_to_join(  # noqa: PLR0913 (all but two by keyword)
    channel: Channel,
    settings: JobSettings,
    *,
    member: Member,
    index: int | None,
    clock: Clock,
    timeout_s: float,
    succeeds: int = 0,
    ended: Callable[[], Awaitable[None]] | None = None,
) -> Admission:
    """Ask the coordinator for a place until it answers; a repeated request gets the same one.

    Args:
        channel: To the coordinator.
        settings: The job's.
        member: Who asks; its index and incarnation are ignored.
        index: The index it must have; None for the lowest free one.
        clock: For the deadline.
        timeout_s: Seconds to go on asking.
        succeeds: Of a planned group: the term that its new owner goes on from; 0 begins it.
        ended: Called when a request has failed; raises if nobody will answer.

    Raises:
        NoCoordinatorError: if no coordinator answered in time.
        JobFullError: if all places are held.
        IndexTakenError: if another live process has the index.
        WrongDataFolderError: if the index is that of a durable pserver, and this process
            hasn't its data folder.
        OtherLaunchError: if the job is another launch's.
        JobFailedError: if the job has failed already.
    """
    started = clock.monotonic()
    fields = {
        "job": settings.job,
        "role": member.role,
        "index": index,
        "endpoint": member.endpoint,
        "admin": member.admin,
        "host": member.host,
        "pid": member.pid,
        "nonce": member.nonce,
        "launch": member.launch,
        "durable": member.durable,
        "holds_run": member.holds_run,
        "process": member.process,
        "succeeds": succeeds,
    }
    while True:
        left_s = timeout_s - (clock.monotonic() - started)
        try:
            reply = await channel.call(
                "join", Message(fields=fields), timeout_s=max(0.5, min(_CALL_TIMEOUT_S, left_s))
            )
        except (UnavailableError, OutcomeUnknownError) as error:
            if ended is not None:
                await ended()
            waited_s = clock.monotonic() - started
            if waited_s >= timeout_s:
                raise NoCoordinatorError(
                    job=settings.job, waited_s=waited_s, reason=str(error)
                ) from error
            await clock.sleep(_POLL_S)
        else:
            return _admission(reply, member)


def newcomer(  # noqa: PLR0913 (all but the first by keyword)
    settings: JobSettings,
    *,
    role: str,
    endpoint: str,
    admin: str,
    durable: bool = False,
    holds_run: int = 0,
    process: str = "",
    nonce: str = "",
) -> Member:
    """Return this process as it introduces itself."""
    return Member(
        role=role,
        index=0,
        incarnation=0,
        endpoint=endpoint,
        admin=admin,
        host=settings.host,
        pid=os.getpid(),
        nonce=nonce or secrets.token_hex(8),
        launch=settings.launch,
        durable=durable,
        holds_run=holds_run,
        process=process,
    )


async def _raise_if_finished(registry: Registry, launch: str, role: str) -> None:
    """Tell a process of a launch that its job needs no more processes.

    A process that was started by hand may be meant for the next run.

    Raises:
        JobFinishedError: if it has finished.
    """
    with contextlib.suppress(NoRedisError):
        if launch and await registry.has_finished(launch):
            raise JobFinishedError(role=role)


async def _withdraw(registry: Registry, asking: asyncio.Future[Admission]) -> None:
    """Release an index that a process gets while it is being stopped, with the reason.

    The coordinator counts on a member before the member knows. One that ended without a notice
    would count as silent, one lease later.
    """
    try:
        await asyncio.wait([asking], timeout=_WITHDRAW_S)
        if not asking.done() or asking.exception() is not None:
            return
        admission = asking.result()
        member, epoch = admission.member, admission.epoch
        sizes, is_worker = admission.sizes, member.role == "worker"
        if is_worker and sizes.returning:  # the coordinator waits for another process
            await registry.beat(member, epoch=epoch, end="lost", why=_STOPPED)
            return
        elastic = sizes.elastic and is_worker
        stays = member.durable or sizes.is_planned  # the coordinator decides then
        if not elastic and not stays:
            await registry.fail(member, epoch=epoch, reason=_STOPPED)
        await registry.beat(member, epoch=epoch, end="left")
    except FleetError as error:
        log.warning("job.left_silently", extra={"reason": str(error)})


def _admission(reply: Message, member: Member) -> Admission:
    facts = reply.fields
    return Admission(
        member=replace(
            member, index=int(facts["index"]), incarnation=int(facts["incarnation"])
        ),
        sizes=JobSizes(
            worker_num=int(facts["worker_num"]),
            server_num=int(facts["server_num"]),
            num_shards=int(facts["num_shards"]),
            elastic=bool(facts["elastic"]),
            returning=bool(facts.get("returning", False)),
            server_processes=int(facts.get("server_processes", 0)),
            replicas=int(facts.get("replicas", 0)),
        ),
        epoch=int(facts["epoch"]),
        run_id=int(facts.get("run_id", 0)),
        known_workers=int(facts["known_workers"]),
        late=bool(facts["late"]),
        released={str(name): int(number) for name, number in facts["released"].items()},
        arrived={str(n): int(number) for n, number in facts.get("arrived", {}).items()},
    )
