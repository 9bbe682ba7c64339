"""One group of a job in a process: its data plane, its place in the job, and its state.

A group begins with ``serve``, whose requests wait; then it has a place in the job, as the
pserver of its index, whose incarnation is its term. Its tables are made or recovered, and the
requests go on. It ends with the job, or when another process has become its owner.

The process owns the threads, the admin address and the signals; groups share them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from paramfleet_pserver.api.access import RIGHTS, IssuedIncarnations
from paramfleet_pserver.api.routes import OPERATIONS, Routes
from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.core.service import ServiceTimes
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_pserver.durability.recovery import RestoreProgress
from paramfleet_pserver.following.follower import Promoted
from paramfleet_pserver.hosting.folders import run_folder
from paramfleet_pserver.tables.blocks import NewShard, in_memory
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.discovery.errors import FencedError
from paramfleet_shared.discovery.membership.planning import PlanCaller
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import (
    FleetError,
    JobFailedError,
    OutcomeUnknownError,
    UnavailableError,
)
from paramfleet_shared.errors.logs import (
    DataFolderError,
    DiskFailingError,
    DiskFullError,
    LogBehindError,
)
from paramfleet_shared.errors.served import PartLostError
from paramfleet_shared.errors.tables import ColdRowsLostError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rights import roles_of
from paramfleet_shared.net.rpc.breaking.chaos_faults import OTHERS, chaos_faults
from paramfleet_shared.net.rpc.server import Handler, Request, RpcServer
from paramfleet_shared.net.rpc.tracing import Tracing
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.disk.errors import TIER_FAILURES
from paramfleet_shared.telemetry.seldom import SeldomWarning
from paramfleet_shared.values.ids import Rank, Step
from paramfleet_shared.values.versions import versions

if TYPE_CHECKING:
    from paramfleet_pserver.durability.data_folder import DataFolder

__all__ = ["Continued", "GroupParts", "HostedGroup", "Planned", "store_of"]

log = logging.getLogger(__name__)

_KEEPS_BLOCKS = (
    "the training began with this number of blocks, one for each thread there, and keeps it; a "
    "job that starts from a checkpoint has as many blocks as there are owner_threads"
)

PUBLISH_PERIOD_S = 1.0
"""Seconds between two looks at the tables for the job's status."""

SNAPSHOT_POLL_S = 0.2
"""Seconds between two looks whether a snapshot is due."""

COPIES_POLL_S = 0.1
"""Seconds between two looks at which copies the registry is to name."""

SNAPSHOT_RETRY_S = 5.0
"""Seconds after one that failed."""

TAKEN_RETRY_S = 0.2
"""Seconds after a command that the disk didn't take, before the group is open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupParts:
    """What the groups of a process share."""

    settings: PServerSettings
    clock: Clock
    owners: Owners
    service: ServiceTimes
    tracing: Tracing | None
    new_shard: NewShard = in_memory
    """Where the rows of sparse tables are."""


class Continued(NamedTuple):
    """What a new owner goes on from: a copy that has followed the owner before it."""

    store: TableStore
    promoted: Promoted
    inherited: Sequence[str]
    """The copies that the registry names of the owner before."""


class Planned(NamedTuple):
    """What a planned group has of its process."""

    planning: PlanCaller
    grace_s: float
    """How long a follower is waited for."""


class HostedGroup:
    """A group in this process. Used from one event loop.

    Args:
        parts: What the process has for all its groups.
        index: The group; None if the coordinator is to say which.
        describe: Returns what this process says of itself, and of the group, to the job.
    """

    def __init__(
        self,
        parts: GroupParts,
        *,
        index: int | None,
        describe: Callable[["HostedGroup"], dict[str, Any]],
    ) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._clock = parts.clock
        self._describe = describe
        self.service = ServiceTimes(parts.service.now, within=parts.service)
        """Of this group's requests."""
        self.session: JobSession | None = None
        self.folder: DataFolder | None = None
        self.routes: Routes | None = None
        self.is_noted = True
        """Whether its disk says under which term it is owned, where that has to be noted."""
        self._progress: RestoreProgress | None = None
        """Of a recovery that is under way."""
        self._restored: dict[str, Any] | None = None
        """What this process has recovered."""
        self._opened = asyncio.Event()
        self._not_taken = SeldomWarning(log, "pserver.disk_refuses", parts.clock)
        self._asks: asyncio.Event | None = None
        """Set while a newer term is asked for; fired when it is known what came of it."""
        settings = parts.settings
        tls = tls_of(settings, "pserver")
        self.server = RpcServer(
            {operation: self._handler(operation) for operation in OPERATIONS},
            name=f"pserver {index if index is not None else '?'}",
            is_named=index is not None,
            clock=parts.clock,
            limits=settings.limits,
            health=lambda: {"ok": True},
            tls=tls and tls.accepts(*roles_of(RIGHTS)),
            rights=RIGHTS,
            secret=secret_of(settings),
            tracing=parts.tracing,
            faults=chaos_faults(settings, parts.clock)(OTHERS),
            nearby=settings.nearby,
        )

    @property
    def index(self) -> int | None:
        """Return the group's index; None before it has a place."""
        return self.session.member.index if self.session is not None else None

    @property
    def term(self) -> int | None:
        """Return under which term it is owned here; None before it has a place."""
        return self.session.member.incarnation if self.session is not None else None

    @property
    def goes_on(self) -> bool:
        """Return whether it has a place in a job that has neither finished nor failed."""
        session = self.session
        return session is not None and not session.finished and session.failure() is None

    def take_place(self, session: JobSession) -> None:
        """Be the owner of the group that the coordinator gave to this process."""
        self.session = session
        self.server.identify(f"pserver {session.member.index}")

    @property
    def state(self) -> str:
        """Return ``serving``, ``restoring`` while it is recovered, or ``loading``."""
        if self.routes is not None:
            return "serving"
        return "loading" if self._progress is None else "restoring"

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask of the group."""
        if self.routes is not None:
            return {**self.routes.facts(), "restored": self._restored}
        progress = self._progress
        return {"tables": [], "restoring": None if progress is None else progress.facts()}

    def log_facts(self) -> dict[str, Any] | None:
        """Return how its log is; None where there is none."""
        return None if self.routes is None else self.routes.log_facts()

    async def live(
        self,
        session: JobSession,
        *,
        of: Continued | None = None,
        planned: Planned | None = None,
    ) -> None:
        """Serve until the job ends, or another process has the group.

        Args:
            session: The group's place in the job.
            of: What is gone on with; None begins the group, or recovers it from the disk.
            planned: Of a planned group: how its plan is made known and changed.

        Raises:
            FleetError: why it ended badly.
        """
        failure: FleetError | None = None
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(self._open(session, of, planned))
            beside = [
                tasks.create_task(self._publish(session)),
                tasks.create_task(self._take_snapshots()),
            ]
            if planned is not None:
                beside.append(tasks.create_task(self._register_copies(session, planned)))
            try:
                await self._stay(session)
            except (PartLostError, ColdRowsLostError) as error:
                await self._tell(session, error)
                failure = error
            except FleetError as error:
                failure = error
            for task in (*beside, opening):
                task.cancel()
        if not opening.cancelled() and (unopened := opening.result()) is not None:
            failure = unopened
        if failure is not None and not isinstance(failure, (FencedError, JobFailedError)):
            log.error("pserver.failed", extra={"reason": str(failure)})
        if failure is not None:
            if isinstance(failure, FencedError) and planned is not None:
                self.give_up()  # who waits here has to ask the new owner
            elif self.routes is not None:
                self.routes.fail(failure)
            raise failure

    async def _tell(
        self, session: JobSession, error: PartLostError | ColdRowsLostError
    ) -> None:
        """Fail the job, unless another process can go on with the group."""
        can_go_on = self.routes is not None and self.routes.has_copy
        if isinstance(error, PartLostError) or not can_go_on:
            await session.fail(str(error))

    async def _stay(self, session: JobSession) -> None:
        """Be a member, also under the terms of later sessions, until the job ends.

        Raises:
            FencedError: if another process has the group.
            FleetError: why it ended badly.
        """
        while True:
            try:
                await session.run(after_beat=partial(self._after_beat, session))
            except FencedError:  # the newer term may be the one that is asked for here
                if self._asks is not None:
                    await self._asks.wait()
                if self.session is session:
                    raise
            if self.session is None or self.session is session:
                return
            session = self.session

    def asks(self) -> None:
        """A newer term is being asked for: it may be given long before that is known here."""
        if self._asks is None:
            self._asks = asyncio.Event()

    def stays(self) -> None:
        """It is known what came of that: ``rejoin`` was called, or there is no newer term."""
        asks, self._asks = self._asks, None
        if asks is not None:
            asks.set()

    async def rejoin(self, session: JobSession) -> None:
        """Go on under a newer term: who was about to have the group hasn't got it."""
        assert self.session is not None, "it was owned before"
        assert self.routes is not None, "it was fenced"
        former, self.session = self.session, session
        self.routes.unfence(session.member.incarnation)
        self.stays()
        await former.leave()

    def give_up(self) -> None:
        """Another process owns the group: answer all that wait here."""
        if self.routes is not None:
            self.routes.give_up()

    async def settle_readers(self, *, finished: bool = False) -> None:
        """After a good end let readers have the last values; they have a moment for it.

        Args:
            finished: As of ``release``.
        """
        finished = finished or (self.session is not None and self.session.finished)
        if self.routes is not None and finished:
            await self.routes.settle_readers()

    async def release(self, *, finished: bool = False) -> None:
        """Close the log, and let others have the folder; after a good end it is empty.

        Args:
            finished: Whether the job has ended well, though this group may not know it yet.
        """
        if self.routes is not None:
            await self.routes.close()
        if self.folder is None:
            return
        try:
            if finished or (self.session is not None and self.session.finished):
                await asyncio.to_thread(self.folder.remove_runs)
        except DataFolderError as error:  # the next run removes it
            facts = {"group": self.index, "reason": str(error)}
            log.warning("pserver.data_not_removed", extra=facts)
        finally:
            self.folder.close()

    async def _open(
        self, session: JobSession, of: Continued | None, planned: Planned | None
    ) -> FleetError | None:
        """Make the tables and let the requests go on; returns why that failed."""
        routes = self._new_routes(session, of, planned)
        routes.followers.expect({})  # until there is a plan that names others
        try:
            began = self._clock.monotonic()
            if of is not None:
                routes.go_on(of.promoted)
                routes.followers.inherit(of.inherited)
                await self._fence(session, routes)
            elif await self._recover(routes):
                await self._until_taken(routes.begin_term)
                await self._fence(session, routes)
                took_s = round(self._clock.monotonic() - began, 3)
                self._restored = {"seconds": took_s, **(self._restored or {})}
                group = {} if planned is None else {"group": self.index}
                facts = {**group, **self._restored, **(routes.log_facts() or {})}
                log.warning("pserver.recovered", extra=facts)
            elif self._settings.load:
                rows = await routes.load_from(place_of(self._settings.load))
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
        self.routes = routes
        self._opened.set()
        cpu_s = round(time.process_time(), 3)
        facts = {"endpoint": session.member.endpoint, "cpu_s": cpu_s}
        log.info("pserver.serving", extra=facts)
        return None

    async def _recover(self, routes: Routes) -> bool:
        """Go on with the training that is on the disk; returns whether there is one.

        Raises:
            FleetError: as ``Routes.recover``.
            OSError: if the system refuses.
        """
        progress = self._progress = RestoreProgress()
        own_blocks = routes.num_blocks
        if not await routes.recover(progress):
            self._progress = None
            return False
        if routes.num_blocks != own_blocks:
            threads = len(self._parts.owners)
            facts = {
                "group": self.index,
                "blocks": routes.num_blocks,
                "threads": min(threads, routes.num_blocks),
                "owner_threads": threads,
                "reason": _KEEPS_BLOCKS,
            }
            log.info("pserver.keeps_blocks", extra=facts)
        await routes.count_rows()
        rows = [each for each in routes.facts()["tables"] if each["kind"] == "sparse"]
        self._restored = {
            "rows": sum(each["rows"] for each in rows),
            "commands": progress.commands,
        }
        return True

    def _new_routes(
        self, session: JobSession, of: Continued | None, planned: Planned | None
    ) -> Routes:
        return Routes(
            new_store(self._parts, session) if of is None else of.store,
            owners=self._parts.owners,
            server=session.member.index,
            clock=self._clock,
            elastic=session.elastic,
            returning=session.returning,
            dirs=CheckpointDirs.of(self._settings.checkpoint_dirs),
            issued=IssuedIncarnations(
                partial(session.read_incarnation, "worker"),
                clock=self._clock,
                patience_s=2 * self._settings.lease_renew_s,
            ),
            persistence=self._persistence(session),
            term=None if planned is None else session.member.incarnation,
            replicas=session.replicas,
            replica_grace_s=0.0 if planned is None else planned.grace_s,
            proposes=planned is not None,
        )

    def _persistence(self, session: JobSession) -> Persistence | None:
        """Return where the training is kept; None for in memory alone."""
        if self._settings.durability == "none":
            return None
        return Persistence(
            run_folder(self._settings, session.member.index, session.run_id),
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
        ranks = routes.ranks()
        newest = await asyncio.gather(
            *(session.read_incarnation("worker", rank) for rank in ranks)
        )
        for rank, incarnation in zip(ranks, newest, strict=True):
            await self._until_taken(partial(routes.fence, rank, incarnation))

    async def _until_taken(self, execute: Callable[[], None]) -> None:
        """Execute a command as soon as the disk takes it: it may have room later."""
        while True:
            try:
                execute()
            except (DiskFullError, DiskFailingError, LogBehindError) as error:
                self._not_taken.warn(group=self.index, reason=str(error))
                await self._clock.sleep(TAKEN_RETRY_S)
            else:
                return

    async def _register_copies(self, session: JobSession, planned: Planned) -> None:
        """Have the registry name those copies that may be gone on with."""
        while self.routes is None:
            await self._opened.wait()
        while not self.is_noted:  # a disk that is named must say that it has this term
            await self._clock.sleep(COPIES_POLL_S)
        routes = self.routes
        while True:
            await routes.followers.changed(COPIES_POLL_S)
            proposal = routes.followers.proposal()
            if proposal is None:
                continue
            group, (number, copies) = session.member.index, proposal
            try:
                await planned.planning.set_eligible(group, routes.term, copies, number=number)
            except FleetError as error:  # whether it was written isn't known: again
                passes = isinstance(error, (UnavailableError, OutcomeUnknownError))
                facts = {"group": group, "reason": str(error)}
                level = logging.DEBUG if passes else logging.WARNING
                log.log(level, "group.copies_not_written", extra=facts)
                await self._clock.sleep(COPIES_POLL_S)
            else:
                routes.followers.written(number)

    async def _take_snapshots(self) -> None:
        """Take a snapshot whenever one is due; one that fails is tried again."""
        if self._settings.durability == "none":
            return
        while self.folder is None:  # its former owner may have it for a while
            await self._clock.sleep(SNAPSHOT_POLL_S)
        while True:
            pause_s = SNAPSHOT_POLL_S
            began = self._clock.monotonic()
            try:
                taken = None if self.routes is None else await self.routes.take_snapshot()
            except (FleetError, OSError) as error:
                log.warning("pserver.no_snapshot", extra={"reason": str(error)})
                pause_s = SNAPSHOT_RETRY_S
            else:
                if taken is not None:
                    took_s = round(self._clock.monotonic() - began, 3)
                    facts = {"position": taken.position, "seconds": took_s}
                    log.info("pserver.snapshot", extra=facts)
            await self._clock.sleep(pause_s)

    def _after_beat(self, session: JobSession) -> None:
        """Do what is due while the job goes on.

        Raises:
            ColdRowsLostError: if a disk has failed with rows on it.
            PartLostError: as ``Routes.lose``.
        """
        lost = None if self.routes is None else self.routes.lost_rows
        if lost is not None:
            raise lost
        self._take_out_lost(session)

    def _take_out_lost(self, session: JobSession) -> None:
        """Go on without the workers that an elastic job has lost."""
        routes = self.routes
        if routes is not None and routes.is_refusing:
            return  # the disk is full: with a later heartbeat
        for lost in session.lost:
            step = None if lost.step is None else Step(lost.step)
            if routes is not None and routes.lose(Rank(lost.index), lost.incarnation, step):
                facts = {"index": lost.index, "incarnation": lost.incarnation, "step": step}
                log.warning("worker.taken_out", extra=facts)

    async def _publish(self, session: JobSession) -> None:
        fault = None
        while True:
            if self.routes is not None:
                fault = _noted(fault, self.log_facts(), self.index)
                if not self.routes.is_refusing:
                    self.routes.apply_orders(session.life.orders)
                with suppress(*TIER_FAILURES):  # which end the group with the next beat
                    await self.routes.count_rows()
            session = self.session or session
            await session.publish({**self._describe(self), "versions": versions()})
            await self._clock.sleep(PUBLISH_PERIOD_S)

    def _handler(self, operation: str) -> Handler:
        service = self.service

        def handle(request: Request) -> Any:
            if self.routes is None:
                return self._handle_later(operation, request)
            began = service.now()
            reply = self.routes.handle(operation, request)
            if isinstance(reply, Message):
                service.count(operation, began)
                return reply
            return service.counted(operation, began, reply, waited_s=_waited_s)

        return handle

    async def _handle_later(self, operation: str, request: Request) -> Message:
        await self._opened.wait()
        assert self.routes is not None, "opened"
        reply: Message | Awaitable[Message] = self.routes.handle(operation, request)
        return reply if isinstance(reply, Message) else await reply


def _noted(
    known: str | None, log_facts: dict[str, Any] | None, group: int | None
) -> str | None:
    """Log what a group's disk refuses with, or that it takes changes again; return that."""
    fault = None if log_facts is None else log_facts["fault"]
    if fault != known and fault is not None:
        log.warning("pserver.disk_refuses", extra={"group": group, "reason": fault})
    elif fault != known:
        log.warning("pserver.disk_takes", extra={"group": group})
    return None if fault is None else str(fault)


def new_store(parts: GroupParts, session: JobSession) -> TableStore:
    """Return a group's tables, none as yet."""
    return store_of(
        parts,
        session.member.index,
        num_groups=session.server_num,
        num_shards=session.num_shards,
    )


def store_of(parts: GroupParts, group: int, *, num_groups: int, num_shards: int) -> TableStore:
    """Return the tables of a group of a job of these sizes, none as yet."""
    anywhere = Placement(endpoints=("",) * num_groups, num_shards=num_shards)
    return TableStore(
        shards=anywhere.shards_of(group),
        num_shards=num_shards,
        num_owners=len(parts.owners),
        limits=parts.settings.table_limits,
        new_shard=parts.new_shard,
    )


def _waited_s(answer: Message) -> float:
    """Return for how long a request waited for other workers, if its answer says so."""
    return float(answer.fields.get("waited_s", 0.0))
