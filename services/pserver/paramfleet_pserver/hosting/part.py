"""What this process does about one group, as the plan says: host it, follow it, get it.

The plan says what is to be; this makes it so, one act after the other. An act that fails is
tried again, or given up and reported to the coordinator. A group is owned only under a term
that the registry gave to this process, whatever the plan said before.

A request for a term whose outcome isn't known is a ``Claim``. While there is one, nothing else
is done about the group: no copy is let go that it may have to be gone on with.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from paramfleet_pserver.hosting.claims import Claim
from paramfleet_pserver.hosting.disk import GroupDisk
from paramfleet_pserver.hosting.following import Following, expected_of
from paramfleet_pserver.hosting.group import Continued, GroupParts, HostedGroup, Planned
from paramfleet_pserver.hosting.held import HeldCopies
from paramfleet_pserver.hosting.planned_work import PlannedWork
from paramfleet_shared.discovery.errors import FencedError
from paramfleet_shared.discovery.plan import DISK, GroupPlan, ProcessId
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.errors.following import HandoverError, NotWholeError
from paramfleet_shared.errors.logs import DiskFailingError, DiskFullError
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.telemetry.seldom import SeldomWarning

__all__ = ["Hoster", "Part"]

LOOK_S = 0.05
"""Seconds between two looks while something is under way."""

IDLE_S = 0.5
"""Seconds between two looks while nothing is."""

HANDOVER_S = 2.0
"""Seconds that the last commands may take to come while the owner executes nothing."""

OUTCOME_S = 5.0
"""Seconds after which an owner that was stopped for another one asks for the group itself."""

CLAIM_S = 5.0
"""Seconds of one attempt to own a group that is here: the plan is looked at between two."""

RETRY_S = 0.5
"""Seconds after an act that failed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hoster:
    """What the parts of a process share."""

    parts: GroupParts
    session: JobSession
    admin: str
    """``host:port`` of the admin address."""

    take_port: Callable[[], int]
    """Returns the port that the next data plane is to have; 0 for a free one."""

    describe: Callable[[HostedGroup], dict[str, Any]]

    @property
    def process(self) -> ProcessId:
        """Return which process this is."""
        return self.session.planning.process


class _Lost(NamedTuple):
    """A group that another process has got."""

    term: int
    """The last one that this process had it under."""
    at: float
    """When it learnt that, by the monotonic clock."""


class Part:
    """One group. Used from one event loop; ``run`` is its one task.

    Args:
        hoster: Of the process.
        group: Which.
    """

    def __init__(self, hoster: Hoster, group: int) -> None:
        self._hoster = hoster
        self._parts = hoster.parts
        self._clock = hoster.parts.clock
        self._group = group
        self.hosted: HostedGroup | None = None
        self._living: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        """Has the data folder of the hosted group, and the disk know whose it is."""
        self._ending: asyncio.Task[None] | None = None
        """Lets the last hosted group go."""
        self._copies = HeldCopies(hoster.parts, hoster.session, group)
        self._pending: Claim | None = None
        """What this process has asked for, and doesn't know the outcome of."""
        self._is_beginning = False
        """Whether it has asked to begin the group, which nobody has had before."""
        self._work = PlannedWork(group)
        self._lost = _Lost(-1, 0.0)
        self._changed = asyncio.Event()
        self._planned = GroupPlan()
        self._disk = GroupDisk(hoster.parts, group)
        self._refused = SeldomWarning(log, "group.again", hoster.parts.clock)
        """That the disk refuses."""

    @property
    def is_serving(self) -> bool:
        """Return whether it does what the plan asks for."""
        waits = self._planned.owner == self._hoster.process and not self._planned.heir
        return not waits or (self.hosted is not None and self.hosted.routes is not None)

    def note_plan(self, plan: GroupPlan) -> None:
        """Have the group as the plan says."""
        if plan != self._planned:
            self._planned = plan
            self._changed.set()
            self._work.note_plan(plan)

    async def run(self) -> None:
        """Do what the plan says, until it is cancelled.

        Raises:
            FleetError: if the job has failed, or the group can't be served.
        """
        while True:
            try:
                await self._act(self._planned)
            except (DiskFullError, DiskFailingError) as error:
                self._refused.warn(group=self._group, reason=str(error))
                await self._clock.sleep(RETRY_S)
            except UnavailableError as error:
                log.warning("group.again", extra={"group": self._group, "reason": str(error)})
                await self._clock.sleep(RETRY_S)
            self._changed.clear()
            pause_s = LOOK_S if self._is_busy() else IDLE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """End all; ``run`` was cancelled."""
        await self._copies.close()
        await self._drop_claim()
        await self._end_hosting(drain_s=self._parts.settings.drain_timeout_s)

    def facts(self) -> dict[str, Any] | None:
        """Return how the copy is that this process keeps; None if it keeps none."""
        following = self._copies.following
        return None if following is None else following.facts()

    def known(self, plan: GroupPlan) -> GroupPlan:
        """Return what is known to be in the registry: the plan, or a newer set of the owner's.

        Args:
            plan: The newest that was read.
        """
        hosted, me = self.hosted, self._hoster.process
        if hosted is None or hosted.routes is None or hosted.term is None:
            return plan
        number, copies = hosted.routes.followers.named()
        return plan.as_written(me, hosted.term, copies, number=number)

    # -- acts

    async def _act(self, plan: GroupPlan) -> None:
        me = self._hoster.process
        if self._pending is not None and self._pending.is_refused(plan, me):
            await self._drop_claim()
        if self.hosted is not None:
            await self._look_at_hosted(plan)
        elif self._pending is not None:
            if self._pending.may_ask(plan, me):
                await self._own(self._pending, plan)
        elif plan.heir == me:
            await self._take_over(plan)
        elif self._is_to_begin(plan):
            if not self._is_outdated(plan):
                await self._begin(plan)
        elif me in {plan.follower, plan.target} and plan.term and plan.heir is None:
            await self._copies.follow(plan)
            following = self._copies.following
            if plan.target == me and following is not None and following.is_near:
                await self._receive(following, plan)
        else:
            await self._copies.let_go(plan)

    async def _look_at_hosted(self, plan: GroupPlan) -> None:
        """See to a group that is hosted: it may have another owner, or need this one again.

        Raises:
            FleetError: why it ended badly.
        """
        hosted, living = self.hosted, self._living
        assert hosted is not None, "it is looked at"
        if living is not None and living.done():
            error = living.exception()
            if error is None or not isinstance(error, FencedError):
                await living  # the job has ended, or failed
                return
            await self._lose(plan)
        elif self._pending is not None:
            if self._pending.may_ask(plan, self._hoster.process):
                await self._go_on(self._pending)
        elif plan.term > (hosted.term or 0) or self._is_begun_elsewhere(plan):
            await self._lose(plan)
        elif hosted.routes is not None:
            self._expect_followers(hosted, plan)
            since = hosted.routes.handover
            late = since is not None and self._clock.monotonic() - since.since > OUTCOME_S
            if late:
                assert hosted.session is not None, "it is hosted"
                assert hosted.term is not None, "it is hosted"
                endpoint = hosted.session.member.endpoint
                self._pending = Claim(hosted=hosted, endpoint=endpoint, succeeds=hosted.term)
                await self._go_on(self._pending)

    def _is_to_begin(self, plan: GroupPlan) -> bool:
        """Return whether this process is to have the group, and not by another's copy."""
        return plan.heir is None and plan.owner == self._hoster.process

    def _is_begun_elsewhere(self, plan: GroupPlan) -> bool:
        """Return whether another process is to begin the group anew, and needs its folder."""
        another = plan.owner is not None and plan.owner != self._hoster.process
        return plan.is_new and another and not plan.since_term

    def _is_outdated(self, plan: GroupPlan) -> bool:
        """Return whether a plan gives this process what it has lost to another one since.

        That may be learnt before the newer plan is read, or written. If none comes in the time
        of two leases, the other one never got the group.
        """
        term, at = self._lost
        patience_s = 2 * self._parts.settings.lease_ttl_s
        return plan.term <= term and self._clock.monotonic() - at < patience_s

    async def _lose(self, plan: GroupPlan) -> None:
        """Stop hosting a group that another process owns."""
        log.info("group.given_up", extra={"group": self._group, "term": plan.term})
        assert self.hosted is not None, "it is hosted"
        self._lost = _Lost(self.hosted.term or 0, self._clock.monotonic())
        self.hosted.give_up()
        await self._end_hosting(drain_s=1.0)

    async def _go_on(self, claim: Claim) -> None:
        """Own a group under a newer term: who was about to get it hasn't.

        Raises:
            FleetError: as ``JobSession.join``; then another one may have it.
        """
        claim.hosted.asks()
        session = await self._join_as(claim)
        await claim.hosted.rejoin(session)
        self._pending = None
        facts = {"group": self._group, "term": claim.hosted.term}
        log.warning("group.goes_on", extra=facts)

    async def _begin(self, plan: GroupPlan) -> None:
        """Host a group that begins, or that is on this process's disk.

        All that the disk may refuse is done before the group is asked for: then there is no
        place in the job to give back. It is asked for only while the plan says so: another one
        may need the folder by now.

        Raises:
            NotWholeError: if it has begun, and nothing of it is here; the job has failed then.
            FleetError: as ``JobSession.join`` and ``GroupDisk.begin``.
        """
        has_disk = self._parts.settings.durability != "none"
        on_disk = has_disk and (plan.disk_term or plan.is_new)
        if plan.since_term and not self._is_beginning and not on_disk:
            await self._fail(NotWholeError(reason=f"it was lost since term {plan.since_term}"))
        disk = None
        if has_disk:
            run_id = self._hoster.session.run_id
            disk = await self._disk.begin(run_id, has_begun=plan.term > 0)
        self._is_beginning = self._is_beginning or not plan.term
        hosted = None
        try:
            hosted, endpoint = await self._listen()
            held_run = 0 if disk is None else disk.held_run
            asking = self._join(endpoint, succeeds=plan.term, holds_run=held_run)
            session = await self._work.run(self._is_to_begin, asking, release=JobSession.leave)
            hosted.take_place(session)
        except BaseException:
            if hosted is not None:
                await hosted.server.close()
            if disk is not None:
                disk.folder.close()
            raise
        if disk is not None:
            hosted.folder, hosted.is_noted = disk.folder, False
        self._host(hosted, session, None)

    async def _take_over(self, plan: GroupPlan) -> None:
        """Host a group whose owner is dead, with the copy that is here.

        Raises:
            NotWholeError: if there is none; the job has failed then.
            FleetError: as ``_own``.
        """
        source = self._copies.named(plan)
        if source is None:
            await self._fail(
                NotWholeError(reason="the registry (Redis) names one that isn't here")
            )
        hosted, endpoint = await self._listen()
        self._pending = Claim(
            hosted=hosted, endpoint=endpoint, succeeds=plan.term, source=source
        )
        await self._own(self._pending, plan)

    async def _receive(self, source: Following, plan: GroupPlan) -> None:
        """Get a group from its owner, which this process follows.

        Raises:
            PlanChangedError: if it isn't to have the group any more, as where the owner died.
            FleetError: as ``_own``.
        """
        began = self._clock.monotonic()
        hosted, endpoint = await self._listen()
        me = self._hoster.process
        handing = source.follower.hand_over(timeout_s=HANDOVER_S)
        try:
            fenced = await self._work.run(
                lambda newer: newer.target == me and newer.term == plan.term, handing
            )
        except HandoverError as error:
            await hosted.server.close()
            log.warning(
                "group.not_handed_over", extra={"group": self._group, "reason": str(error)}
            )
            await self._hoster.session.planning.cancel_move(self._group)
            return
        except BaseException:
            await hosted.server.close()
            raise
        fenced_s = self._clock.monotonic() - began
        self._pending = Claim(
            hosted=hosted, endpoint=endpoint, succeeds=fenced, source=source, fenced=fenced
        )
        await self._own(self._pending, plan)
        took_s = self._clock.monotonic() - began
        facts = {"fenced_s": round(fenced_s, 3), "seconds": round(took_s, 3)}
        log.info("group.received", extra={"group": self._group, **facts})

    async def _own(self, claim: Claim, plan: GroupPlan) -> None:
        """Become the owner, and go on with a copy.

        Args:
            claim: For what; it stays until its outcome is known.
            plan: The group's.

        Raises:
            NotWholeError: if the copy isn't whole; the job has failed then.
            FleetError: if the coordinator refuses, or doesn't answer; the copy stays then.
        """
        source = claim.source
        assert source is not None, "it is gone on with"
        if claim.session is None:
            claim.session = await self._join_as(claim)
            claim.hosted.take_place(claim.session)
        try:
            promoted = await source.follower.promote(succeeds=claim.fenced)
        except NotWholeError as error:
            await self._fail(error)
        inherited = [*plan.heirs, *([DISK] if plan.disk_term else [])]
        me = self._hoster.process.text
        of = Continued(source.store, promoted, [each for each in inherited if each != me])
        self._host(claim.hosted, claim.session, of)
        self._pending = None
        await self._copies.close()

    # -- parts of acts

    async def _listen(self) -> tuple[HostedGroup, str]:
        """Return a group whose data plane listens, and where; its requests wait."""
        settings = self._parts.settings
        hosted = HostedGroup(self._parts, index=self._group, describe=self._hoster.describe)
        bind = settings.bind or settings.host
        port = await hosted.server.start(bind, self._hoster.take_port())
        return hosted, join_endpoint(settings.host, port)

    async def _join_as(self, claim: Claim) -> JobSession:
        """Ask for a group that is here, as often as its outcome isn't known.

        Raises:
            FleetError: as ``JobSession.join``; whether it was given isn't known then.
        """
        patience_s = min(CLAIM_S, self._parts.settings.join_timeout_s)
        return await self._join(
            claim.endpoint, succeeds=claim.succeeds, patience_s=patience_s, nonce=claim.nonce
        )

    async def _drop_claim(self) -> None:
        """Ask for the group no more."""
        claim, self._pending = self._pending, None
        if claim is not None:
            await claim.close()

    async def _fail(self, error: NotWholeError) -> NoReturn:
        """End the job: what this process should go on with isn't here.

        Raises:
            NotWholeError: that.
        """
        await self._hoster.session.fail(f"group {self._group}: {error}")
        raise error

    async def _join(
        self,
        endpoint: str,
        *,
        succeeds: int,
        holds_run: int = 0,
        patience_s: float | None = None,
        nonce: str = "",
    ) -> JobSession:
        settings = self._parts.settings
        if patience_s is not None:
            settings = replace(settings, join_timeout_s=patience_s)
        return await JobSession.join(
            settings,
            role="pserver",
            index=self._group,
            endpoint=endpoint,
            admin=self._hoster.admin,
            clock=self._clock,
            tracing=self._parts.tracing,
            durable=settings.durability != "none",
            holds_run=holds_run,
            process=self._hoster.process.text,
            succeeds=succeeds,
            nonce=nonce,
        )

    def _host(self, hosted: HostedGroup, session: JobSession, of: Continued | None) -> None:
        plan = self._hoster.session.life.plan
        planning = self._hoster.session.planning
        planned = Planned(planning, 0.0 if plan is None else plan.replica_grace_s)
        self._is_beginning = False
        loop = asyncio.get_running_loop()
        self.hosted = hosted
        self._living = loop.create_task(hosted.live(session, of=of, planned=planned))
        self._living.add_done_callback(lambda _: self._changed.set())
        if hosted.folder is not None:
            self._claiming = loop.create_task(self._disk.note(hosted, session))
        elif self._parts.settings.durability != "none":
            self._claiming = loop.create_task(self._disk.claim(hosted, session))

    def _expect_followers(self, hosted: HostedGroup, plan: GroupPlan) -> None:
        """Let those follow that the plan names; don't count on others any more."""
        routes = hosted.routes
        if routes is None or plan.term != hosted.term:
            return
        target = None if plan.target is None else plan.target.text
        routes.followers.expect(expected_of(plan, self._hoster.process), target=target)

    async def _end_hosting(self, *, drain_s: float) -> None:
        """Let the hosted group go; if this is cancelled, the next call waits for that."""
        hosted, self.hosted = self.hosted, None
        if hosted is not None:
            ending = self._let_go(hosted, self._living, self._claiming, drain_s=drain_s)
            self._living = self._claiming = None
            self._ending = asyncio.get_running_loop().create_task(ending)
        if self._ending is not None:
            await asyncio.wait((self._ending,))
            ended, self._ending = self._ending, None
            ended.result()

    async def _let_go(
        self,
        hosted: HostedGroup,
        *works: asyncio.Task[None] | None,
        drain_s: float,
    ) -> None:
        await hosted.settle_readers(finished=self._hoster.session.finished)
        await hosted.server.drain(drain_s)
        await hosted.server.close()
        for task in works:
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.exception()  # it was seen
        await hosted.release(finished=self._hoster.session.finished)
        if hosted.session is not None:
            await hosted.session.leave()

    def _is_busy(self) -> bool:
        plan, me = self._planned, self._hoster.process
        moving = plan.target is not None and me in {plan.owner, plan.target}
        following = me == plan.follower and self._copies.following is None
        fenced = (
            self.hosted is not None
            and self.hosted.routes is not None
            and self.hosted.routes.handover is not None
        )
        opening = self.hosted is not None and self.hosted.routes is None
        return moving or following or fenced or opening or plan.heir == me
