"""A member's part in a job, from joining to leaving.

``JobSession.join`` gives the session; its owner then runs ``run`` in a task until the
job ends. The other methods may be called from any task of the same event loop. When a
member of the job dies or gives up, every wait of every session ends within a
heartbeat's time with ``JobFailedError``.
"""

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from paramfleet_shared.discovery.barriers import BarrierCaller
from paramfleet_shared.discovery.board import Board
from paramfleet_shared.discovery.errors import (
    EpochEndedError,
    FencedError,
    GatherLostError,
    NoRedisError,
    PlacementTimeoutError,
    RedisRefusedError,
    UnissuedIncarnationError,
    WorkersOnlyError,
)
from paramfleet_shared.discovery.joining import Entry, enter
from paramfleet_shared.discovery.membership.life import JobLife
from paramfleet_shared.discovery.membership.outages import Outages
from paramfleet_shared.discovery.membership.planning import PlanCaller
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.records import End, JobRecord, Lost, Member
from paramfleet_shared.discovery.redis.store import outlast
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.errors import FleetError, JobFailedError
from paramfleet_shared.net.rpc.tracing import Tracing
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = ["JobSession"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_POLL_S = 0.1
"""Seconds between two reads of what is only in the registry."""

_FIRST_BEATS = 3
"""Heartbeats in which a member says what it has passed: the answer to one may be lost."""

_MAX_PLACE = 200
"""Characters of where a worker is that others log."""

_MAX_REASON = 500
"""Characters of why a worker gave up that the job keeps."""


class JobSession:
    """One process's membership of a job; made by ``join``."""

    def __init__(self, entry: Entry, *, settings: JobSettings, clock: Clock) -> None:
        admission = entry.admission
        self._settings = settings
        self.job: str = settings.job
        self._store = entry.store
        self._registry = Registry(entry.store, job=settings.job)
        self._channel = entry.channel
        self._clock = clock
        self.epoch: int = admission.epoch
        self.run_id: int = admission.run_id
        self._barriers = BarrierCaller(
            entry.channel,
            member=admission.member,
            job=settings.job,
            clock=clock,
            passed=admission.released if admission.sizes.elastic else {},
            whereabouts=self.whereabouts,
        )
        self._released, self._arrived = admission.released, admission.arrived
        self.board = Board(self._registry, admission.member, self.epoch, self._insist)
        self._facts = ""
        self._end: End = ""
        self._why = ""
        self.life = self._life = JobLife()
        self.member: Member = admission.member
        self.elastic: bool = admission.sizes.elastic
        self.returning: bool = admission.sizes.returning
        self.finished_with = 0
        """How many workers finished the training together, this one included; 0 before."""
        self.late: bool = admission.late
        self.worker_num: int = admission.known_workers
        self.server_num: int = admission.sizes.server_num
        self.num_shards: int = admission.sizes.num_shards
        if settings.chaos:
            own = self.member
            hurting.allow(own.role, own.index, own.incarnation, clock)
        self.planning = PlanCaller(
            entry.channel, member=admission.member, job=settings.job, life=self.life
        )
        """For a process that hosts planned groups."""
        self.replicas: int = admission.sizes.replicas

    @classmethod
    async def join(  # noqa: PLR0913 (all but the first by keyword)
        cls,
        settings: JobSettings,
        *,
        role: str,
        index: int | None,
        endpoint: str,
        admin: str,
        clock: Clock,
        tracing: Tracing | None = None,
        durable: bool = False,
        holds_run: int = 0,
        process: str = "",
        succeeds: int = 0,
        nonce: str = "",
    ) -> "JobSession":
        """Become a member; start ``run`` at once after, because the lease runs from here.

        Waits for Redis and the coordinator, so the order of starting doesn't matter.

        Args:
            settings: The job's settings.
            role: ``pserver``, ``worker``, or ``process`` of one that hosts planned groups.
            index: The index it must have; None for the lowest free one.
            endpoint: ``host:port`` of its data plane, which must serve already; or empty.
            admin: ``host:port`` of its admin address; or empty.
            clock: For deadlines and heartbeats.
            tracing: Make a span of each call to the coordinator; None makes none.
            durable: Whether the member's part of the training outlives its process.
            holds_run: The run whose data folder of the index this process has locked; 0 for
                none. Only with it a process takes a durable pserver's place in a training.
            process: Of a planned group: the process that hosts it, as ``ProcessId.text``.
            succeeds: Of a planned group: the term that is gone on from; 0 begins it.
            nonce: Of a request whose outcome isn't known and that this one repeats: it gets the
                place that the former one was given. Empty for a request of its own.

        Raises:
            NoRedisError: if Redis doesn't answer within ``join_timeout_s``.
            RedisRefusedError: if Redis asks for another password.
            NoCoordinatorError: if no coordinator answers within ``join_timeout_s``.
            JobFullError: if all places of the role are held.
            IndexTakenError: if another live process has the index.
            WrongDataFolderError: if the index is that of a durable pserver, and this process
                hasn't its data folder.
            OtherLaunchError: if the job is another launch's.
            JobFailedError: if the job has failed already.
            JobFinishedError: if it has finished.
            CallerRefusedError: if the coordinator doesn't accept this one's certificate.
            PeerUnprovenError: if the coordinator knows another secret.
            OpenJobError: if the settings name neither a certificate nor a secret.
        """
        entry = await enter(
            settings,
            role=role,
            index=index,
            endpoint=endpoint,
            admin=admin,
            clock=clock,
            tracing=tracing,
            durable=durable,
            holds_run=holds_run,
            process=process,
            succeeds=succeeds,
            nonce=nonce,
        )
        admission = entry.admission
        facts = {"role": role, "index": admission.member.index, "epoch": admission.epoch}
        log.info("job.joined", extra={"job": settings.job, "late": admission.late, **facts})
        return cls(entry, settings=settings, clock=clock)

    @property
    def finished(self) -> bool:
        """Return whether the job has finished well."""
        return self._life.finished

    def failure(self) -> FleetError | None:
        """Return why the job ended badly for this member; None while it hasn't."""
        return self._life.failure

    @property
    def lost(self) -> Sequence[Lost]:
        """Return the workers that the job goes on without, as the last heartbeat knew."""
        return self._life.lost

    @property
    def placement(self) -> Placement | None:
        """Return the newest placement that this member has read; None before the first.

        Every heartbeat brings it, before ``run`` calls ``after_beat``.
        """
        return self._life.placement

    async def read_placement(self) -> Placement | None:
        """Read the registry now, and return the newest placement; None before the first.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        self._life.note(await self._insist(lambda: self._registry.read_job(self.epoch)))
        return self._life.placement

    def has_passed(self, barrier: str) -> bool:
        """Return whether a barrier let workers go that this one is level with.

        A worker that was started again is level with those that its former process took part
        in. It goes through those of its script's beginning once more, and they let it go at
        once.
        """
        return self._barriers.next_generation(barrier) > 1 or barrier in self._released

    def may_shrink(self) -> None:
        """Have the coordinator know, before a barrier lets go, that workers may be given up."""
        self._barriers.shrinks = True

    def level_with_former(self) -> None:
        """Count barriers that a former process of this worker had come to.

        To be called when this one has taken a step, so has come to where that one was.
        """
        if self._arrived:
            self._barriers.level_with(self._arrived)
            self._arrived = {}

    async def run(self, *, after_beat: Callable[[], None] | None = None) -> None:
        """Renew the lease until the job ends; returns when it has finished, or after ``leave``.

        Goes on through an outage of Redis or of the coordinator of at most
        ``outage_grace_s``.

        Args:
            after_beat: Called when a heartbeat has returned the job's state.

        Raises:
            JobFailedError: if a member died or gave up, the coordinator for good included.
            NoRedisError: if Redis stayed away.
            FencedError: if a newer process has taken this one's place.
            EpochEndedError: if another run of the job has begun.
            UnissuedIncarnationError: if Redis has too old data to know of this life.
        """
        grace_s = self._settings.outage_grace_s
        outages = Outages(self._life, clock=self._clock, grace_s=grace_s)
        while self._end != "left" and not self._life.finished:
            now = self._clock.monotonic()
            try:
                has_coordinator = await self._beat()
            except NoRedisError as error:
                outages.note_silence(error)
            else:
                hurting.take(self._life.orders.hurts)
                if after_beat is not None:
                    after_beat()
                if outages.note_answer(asked_at=now, has_coordinator=has_coordinator):
                    await self._blame_coordinator()
            self._life.raise_failure()
            if not self._life.finished:
                await self._clock.sleep(self._settings.lease_renew_s)

    async def wait_placement(self) -> Placement:
        """Return the placement once every pserver of the job serves.

        Raises:
            PlacementTimeoutError: if that takes longer than ``join_timeout_s``.
            JobFailedError: if the job fails before.
        """
        started = self._clock.monotonic()
        async with self._life.until_failure():
            while True:
                record = await self._read_job()
                if record is not None and self._life.placement is not None:
                    return self._life.placement
                waited_s = self._clock.monotonic() - started
                if waited_s >= self._settings.join_timeout_s:
                    missing = await self._missing_pservers()
                    raise PlacementTimeoutError(missing=missing, waited_s=waited_s)
                await self._clock.sleep(_POLL_S)

    async def read_incarnation(self, role: str, index: int) -> int:
        """Return the newest incarnation of a place that was given out; 0 for none.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        return await self._insist(lambda: self._registry.read_incarnation(role, index))

    async def barrier(self, name: str, *, timeout_s: float | None = None, at: str = "") -> None:
        """Return when every worker that still trains has called it as often as this one.

        Only a barrier that let this worker go counts as used: after an error or a
        cancellation the same use may be tried again.

        Args:
            name: Barriers of different names don't know each other.
            timeout_s: None takes ``barrier_timeout_s``, and says after some seconds who is
                waited for.
            at: What the training thread waits in until this returns; empty if it goes on. With
                it the call ends as soon as workers wait for each other in different calls.

        Raises:
            BarrierTimeoutError: if a worker didn't come in time; it says which.
            ConcurrentCollectiveError: if another thread of this worker is in it.
            OtherCallError: if another worker waits in another call, for this one.
            JobFailedError: as soon as the job fails.
            WorkersOnlyError: if this isn't a worker.
        """
        self._require_worker(f"barrier {name!r}")
        patience_s = self._settings.barrier_timeout_s if timeout_s is None else timeout_s
        async with self._life.until_failure():
            tells = timeout_s is None
            with self._barriers.using(name):
                await self._barriers.pass_through(
                    name, timeout_s=patience_s, tells=tells, at=at
                )

    async def is_incomplete(self, barrier: str) -> bool:
        """Return whether others haven't come yet to what this worker waits in.

        False if it waits there no more, or the coordinator doesn't answer.

        Args:
            barrier: Name of the barrier; of ``gather`` it is ``gather/NAME``.

        Raises:
            JobFailedError: if the coordinator says so.
        """
        return await self._barriers.is_incomplete(barrier)

    async def gather(
        self, name: str, payload: bytes, *, timeout_s: float | None = None, at: str = ""
    ) -> list[bytes]:
        """Return the payloads of every worker that still trains, in the order of ranks.

        Args:
            name: As a barrier's.
            payload: This worker's; some MiB at most, because all go through Redis.
            timeout_s: As a barrier's.
            at: As a barrier's.

        Raises:
            BarrierTimeoutError: if a worker didn't come in time; it says which.
            ConcurrentCollectiveError: if another thread of this worker is in it.
            OtherCallError: if another worker waits in another call, for this one.
            GatherLostError: if Redis lost payloads in between.
            JobFailedError: as soon as the job fails.
            WorkersOnlyError: if this isn't a worker.
        """
        self._require_worker(f"gather {name!r}")
        patience_s = self._settings.barrier_timeout_s if timeout_s is None else timeout_s
        barrier = f"gather/{name}"
        registry, epoch = self._registry, self.epoch
        with self._barriers.using(barrier) as generation:
            use = f"{generation}:{name}"
            put = partial(registry.put, self.member, epoch=epoch, use=use, payload=payload)
            async with self._life.until_failure():
                await self._insist(lambda: put(keep_s=patience_s))
                tells = timeout_s is None
                ranks = await self._barriers.pass_through(
                    barrier, timeout_s=patience_s, tells=tells, at=at
                )
                found = await self._insist(lambda: registry.read_payloads(epoch=epoch, use=use))
        # No ranks: the coordinator has forgotten them.
        expected = ranks or (sorted(found) if self.elastic else range(self.worker_num))
        missing = [rank for rank in expected if rank not in found]
        if missing:
            raise GatherLostError(name=name, generation=generation, missing=missing)
        return [found[rank] for rank in expected]

    async def publish(self, facts: Mapping[str, Any]) -> None:
        """Put small facts beside the lease; the next heartbeat carries them.

        Args:
            facts: Values that JSON can carry, shown in the coordinator's status; replaces
                earlier ones.
        """
        self._facts = json.dumps(dict(facts))

    async def read_facts(self, role: str) -> dict[int, dict[str, Any]]:
        """Return what the members of a role published last, by index.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        return await self._insist(lambda: self._registry.read_facts(self.epoch, role))

    async def whereabouts(self) -> dict[int, str]:
        """Return where the workers said last that they are, as ``in step 18``, by rank.

        Empty where nobody knows now.
        """
        try:
            facts = await self._registry.read_facts(self.epoch, "worker")
        except FleetError:
            return {}
        return {
            rank: str(each["at"])[:_MAX_PLACE] for rank, each in facts.items() if each.get("at")
        }

    async def mark_done(self) -> None:
        """Say that this worker has finished training; barriers no longer wait for it.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        self._end = "done"
        await self._insist(self._beat)

    async def fail(self, reason: str) -> None:
        """End the job with this member as the cause; the first failure of a job stays.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        await self._insist(
            lambda: self._registry.fail(self.member, epoch=self.epoch, reason=reason)
        )
        self._life.note(await self._insist(lambda: self._registry.read_job(self.epoch)))
        own = JobFailedError(role=self.member.role, index=self.member.index, reason=reason)
        self._life.end_badly(own)

    async def give_up(self, reason: str, *, may_return: bool = False) -> None:
        """End this member's part badly.

        An elastic job goes on without a worker, and one whose workers may return waits for
        another process of it. Any other fails.

        Args:
            reason: Why.
            may_return: Whether another process may do better.

        Raises:
            NoRedisError: if Redis stays away for ``call_timeout_s``.
        """
        goes_on = self.elastic or (self.returning and may_return)
        if not goes_on or self.member.role != "worker":
            await self.fail(reason)
        elif self._end == "":
            self._end, self._why = "lost", reason[:_MAX_REASON]
            await self._insist(self._beat)

    async def leave(self) -> None:
        """Deregister and close the connections; may be called again, and never raises.

        A lease that can't be given back because Redis is gone ends by itself.
        """
        try:
            if self._end != "left":
                self._end = "left"
                await self._insist(self._beat, patience_s=self._settings.lease_ttl_s)
        except FencedError:
            pass  # another process has the place: there is nothing to give back
        except FleetError as error:
            log.warning("job.left_silently", extra={"reason": str(error)})
        finally:
            own = self.member
            hurting.leave(own.role, own.index, own.incarnation)
            try:
                await self._channel.close()
            finally:
                await self._store.close()

    def _require_worker(self, operation: str) -> None:
        """Refuse what is among workers to anybody else.

        Raises:
            WorkersOnlyError: if this isn't a worker.
        """
        if self.member.role != "worker":
            raise WorkersOnlyError(role=self.member.role, operation=operation)

    async def _beat(self) -> bool:
        """Renew the lease and learn how the job stands; True if it has a coordinator.

        Raises:
            FencedError: if a newer process has taken this one's place.
            EpochEndedError: if another run of the job has begun.
            RedisRefusedError: if Redis asks for another password by now.
            UnissuedIncarnationError: if Redis has too old data to know of this life.
        """
        try:
            view = await self._registry.beat(
                self.member,
                epoch=self.epoch,
                end=self._end,
                why=self._why if self._end == "lost" else "",
                facts=self._facts,
            )
        except (
            FencedError, EpochEndedError, RedisRefusedError, UnissuedIncarnationError
        ) as error:  # fmt: skip
            self._life.end_badly(error)
            raise
        known = self._life.record
        passed = {**self._released, **self._barriers.released}
        # Another may have been first to say which run it is; only this one knows its barriers.
        is_new_there = view.num_beats <= _FIRST_BEATS and passed
        if known is not None and (view.job is None or is_new_there):
            await self._registry.restore(
                self.member, epoch=self.epoch, record=known, passed=passed
            )
        self._life.note(view.job)
        return view.has_coordinator

    async def _blame_coordinator(self) -> None:
        """Write that the coordinator is lost, or a launcher would name the first that ends."""
        gone = self._life.failure
        if isinstance(gone, JobFailedError):
            with contextlib.suppress(FleetError):
                await self._registry.fail(
                    self.member, epoch=self.epoch, reason=gone.reason, of=("coordinator", 0)
                )

    async def _read_job(self) -> JobRecord | None:
        """Return the decisions; None also when Redis is away, because a wait goes on then."""
        try:
            record = await self._registry.read_job(self.epoch)
        except NoRedisError:
            return None
        self._life.note(record)
        self._life.raise_failure()
        return record

    async def _missing_pservers(self) -> list[int]:
        try:
            members = await self._registry.read_members(self.epoch)
        except NoRedisError:
            return []
        present = {member.index for member in members if member.role == "pserver"}
        return [index for index in range(self.server_num) if index not in present]

    async def _insist(
        self, call: Callable[[], Awaitable[T]], *, patience_s: float | None = None
    ) -> T:
        patience_s = self._settings.call_timeout_s if patience_s is None else patience_s
        return await outlast(call, clock=self._clock, patience_s=patience_s)
