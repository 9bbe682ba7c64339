"""What the coordinator answers: the rpc operations ``join`` and ``barrier``, and its status."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paramfleet_coordinator.access import require_own_role
from paramfleet_coordinator.core.barriers import Whereabouts
from paramfleet_coordinator.core.fields import RequestFields
from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Decision, Job
from paramfleet_coordinator.core.place import Place
from paramfleet_coordinator.planning import PlanRoutes
from paramfleet_shared.discovery.errors import OtherLaunchError, WrongJobError
from paramfleet_shared.discovery.job_registry import JobRegistry, coordinator_of
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.records import MAX_RUN_ID, Member, Snapshot
from paramfleet_shared.net.rpc.server import Handler, Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock

__all__ = ["RpcRoutes"]

_MAX_PARK_S = 30.0
"""Seconds a barrier request is held at most, whatever it asks for."""

"""The newest run that a newcomer may have data of."""

_TOP_SHARDS = 5
"""Shards of a table that the status names; each pserver says as many of its own."""


class RpcRoutes:
    """Serves one run of a job to its members.

    Every answer to a member is in the registry before it is sent, so that a restarted
    coordinator knows it.

    Args:
        job: The decisions.
        job_registry: Where they are written.
        gathering: Decides how many members the job has, if that is open.
        name: The job's name.
        clock: For silences and waits.
        tick_s: Seconds between two looks at the registry.
    """

    def __init__(
        self,
        job: Job,
        job_registry: JobRegistry,
        *,
        gathering: Gathering,
        name: str,
        clock: Clock,
        tick_s: float,
    ) -> None:
        self._job = job
        self._job_registry = job_registry
        self._gathering = gathering
        self._sizing = asyncio.Lock()
        self._name = name
        self._clock = clock
        self._tick_s = tick_s
        self._changed = asyncio.Condition()
        self._whereabouts = Whereabouts(job.barriers)
        self._snapshot = Snapshot()
        self._decided: list[Decision] = []
        self.planning = PlanRoutes(
            job, write=self._write, require_job=self._require_job, clock=clock
        )

    def handlers(self) -> dict[str, Handler]:
        """Return the operations for an ``RpcServer``."""
        own: dict[str, Handler] = {"join": self._join, "barrier": self._barrier}
        return {**own, **self.planning.handlers()}

    async def look(self) -> list[Decision]:
        """Read the registry, decide, write the decisions and wake who waits for them.

        Returns:
            What changed, for the log.

        Raises:
            NoRedisError: if Redis doesn't answer.
            FencedError: if another coordinator has the lease.
            EpochEndedError: if another run of the job has begun.
        """
        snapshot = await self._job_registry.tick()
        self._snapshot = snapshot
        self._decided += self._job.observe(snapshot, now=self._clock.monotonic())
        await self._evict_lost()
        for release in self._job.barriers.missing(snapshot.released):
            await self._job_registry.release(release)
        if snapshot.job != self._job.record:
            await self._write()
        else:
            await self.planning.note_written(snapshot.job)
        await self._settle()
        decisions, self._decided = self._decided, []
        if decisions:
            await self._wake()
        return decisions

    @property
    def orders(self) -> Orders:
        """Return what an operator wants of the job."""
        return self._job.orders

    @property
    def snapshot(self) -> Snapshot:
        """Return what the registry held when it was last looked at."""
        return self._snapshot

    async def give(self, change: Callable[[Orders], Orders]) -> tuple[Orders, Orders]:
        """Change the orders; members receive them with their next heartbeat.

        They apply from when they are stored. Where other orders were stored meanwhile, the
        change is made again, to those.

        Args:
            change: Returns new orders from the present ones; the same to change nothing.

        Returns:
            The orders before and after.

        Raises:
            NoRedisError: if Redis doesn't answer. Whether the orders are stored is unknown
                then; the next look shows it.
        """
        while True:
            before = self._job.orders
            after = change(before)
            if after == before:
                return before, after
            newer = await self._job_registry.write_orders(after, after=before.version)
            self._job.take_orders(newer or after)
            if newer is None:
                return before, after

    def status(self) -> dict[str, Any]:
        """Return how the job stands, in plain values."""
        job, now = self._job, self._clock.monotonic()
        failure = job.failure
        members = [
            self._describe(place, now) for _, place in sorted(job.members.places.items())
        ]
        return {
            "job": self._name,
            "epoch": self._job_registry.epoch,
            "state": job.state,
            "failure": None
            if failure is None
            else {"role": failure.role, "index": failure.index, "reason": failure.reason},
            "worker_num": job.sizes.worker_num,
            "elastic": job.sizes.elastic,
            "returning": job.sizes.returning,
            "server_num": job.sizes.server_num,
            "num_shards": job.sizes.num_shards,
            "gathering": self._gathering.open_roles(now=now),
            "members": members,
            "plan": self.planning.describe(self._snapshot),
            "barriers": [self._describe_barrier(*use) for use in job.barriers.open()],
            "placement": job.placement.to_wire() if job.placement is not None else None,
            "tables": _merge_tables(members),
        }

    async def _join(self, request: Request) -> Message:
        fields = RequestFields(request.message.fields, where="join")
        self._require_job(fields)
        index, role = fields.optional_integer("index"), fields.text("role")
        newcomer = Member(
            role=role,
            index=0,
            incarnation=0,
            endpoint=fields.text("endpoint"),
            admin=fields.text("admin"),
            host=fields.text("host"),
            pid=fields.integer("pid"),
            nonce=fields.text("nonce"),
            launch=fields.optional_text("launch"),
            durable=fields.optional_flag("durable"),
            holds_run=fields.optional_integer("holds_run", most=MAX_RUN_ID) or 0,
            process=fields.host_process("process", role=role),
        )
        succeeds = fields.optional_integer("succeeds") or 0
        require_own_role(request, newcomer)
        self._require_launch(newcomer)
        await self._gather(newcomer)
        asked_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            place = self._job.join(
                newcomer, index=index, asked_at=asked_at, now=now, succeeds=succeeds
            )
            if place is not None:
                break
            await self._clock.sleep(self._tick_s)
        if not place.incarnation:
            place = await self._register(place)
        job = self._job
        sizes = job.sizes
        return Message(
            fields={
                "index": place.index,
                "incarnation": place.incarnation,
                "epoch": self._job_registry.epoch,
                "run_id": job.run_id,
                "worker_num": sizes.worker_num,
                "server_num": sizes.server_num,
                "num_shards": sizes.num_shards,
                "elastic": sizes.elastic,
                "returning": sizes.returning,
                "server_processes": sizes.server_processes,
                "replicas": sizes.replicas,
                "known_workers": job.members.num_workers,
                "late": job.has_started and place.role == "worker",
                **self._passed(place),
            }
        )

    def _passed(self, member: Member) -> dict[str, dict[str, int]]:
        """Return the barriers that a newcomer counts as having passed, and how often.

        A process in the place of a worker that died also learns which that one had come to.
        """
        job = self._job
        if job.sizes.elastic:
            return {"released": job.barriers.passed()}
        returns = job.sizes.returning and member.role == "worker" and job.has_started
        if not returns:
            return {"released": {}}
        index = member.index
        released, arrived = job.barriers.passed_with(index), job.barriers.come_to(index)
        return {"released": released, "arrived": arrived}

    async def _gather(self, newcomer: Member) -> None:
        """Let a newcomer wait until the job's sizes are known."""
        role, nonce = newcomer.role, newcomer.nonce
        self._gathering.arrive(role, nonce, now=self._clock.monotonic())
        try:
            while not self._gathering.knows_enough(role):
                await self._clock.sleep(self._tick_s)
                self._job.raise_failure()
                await self._decide_sizes()
        finally:
            self._gathering.go(role, nonce, now=self._clock.monotonic())

    async def _decide_sizes(self) -> None:
        """Decide what can be decided of the job's sizes."""
        async with self._sizing:
            sizes = self._gathering.settled(now=self._clock.monotonic())
            if sizes != self._gathering.sizes:
                self._job.resize(sizes)
                self._job.adopt(await self._job_registry.write_job(self._job.record))
                self._gathering.sizes = sizes
                facts = {"workers": sizes.worker_num, "pservers": sizes.server_num}
                self._decided.append(Decision(event="job.sized", facts=facts))

    async def _register(self, place: Member) -> Member:
        after = self._job.least_incarnation(place.role, place.index)
        try:
            self._decided += self._job.succeed(place)
            await self._evict_lost()
            incarnation = await self._job_registry.register(place, after=after)
        except BaseException:
            self._job.members.give_up(place)
            raise
        member = replace(place, incarnation=incarnation)
        now = self._clock.monotonic()
        self._job.members.confirm(member, now=now)
        returned = self._job.note_return(member, now=now)
        self._decided += returned
        if returned or member.process:  # workers needn't wait for the next look
            await self._write()
        return member

    async def _write(self) -> None:
        failpoint("before_placement_written")
        record = self._job.record
        self._job.adopt(await self._job_registry.write_job(record))
        await self.planning.note_written(record)
        failpoint("after_placement_written")

    async def _barrier(self, request: Request) -> Message:
        fields = RequestFields(request.message.fields, where="barrier")
        self._require_job(fields)
        name, generation = fields.name("name"), fields.integer("generation")
        rank, incarnation = fields.integer("rank"), fields.integer("incarnation")
        park_s = min(fields.number("park_s"), _MAX_PARK_S)
        job = self._job
        job.raise_failure()
        job.members.require("worker", rank, incarnation=incarnation)
        if fields.optional_flag("shrinks") and not job.shrinks:
            job.shrinks = True
            await self._write()  # the launcher reads it when a worker dies
        if not job.barriers.is_released(name, generation):
            job.barriers.require_free_barrier(name, generation)
            await self._job_registry.arrive(name, generation, rank)
            job.barriers.arrive(name, generation, rank)
            await self._settle()
        at, watches = fields.optional_text("at"), fields.optional_flag("watches")
        if not at:
            return await self._park(name, generation, park_s=park_s)
        stand = self._whereabouts.enter(rank, (name, generation), at, watches=watches)
        try:
            if self._whereabouts.is_watched(rank):
                await self._wake()
            return await self._park(
                name, generation, park_s=park_s, watcher=rank if watches else None
            )
        finally:
            self._whereabouts.leave(rank, stand)

    async def _park(
        self, name: str, generation: int, *, park_s: float, watcher: int | None = None
    ) -> Message:
        """Answer when a barrier has let go, or the time is over.

        Args:
            name: The barrier's.
            generation: Which use of it.
            park_s: Seconds until it is answered in any case.
            watcher: Rank of a worker that is also answered if others wait elsewhere.
        """
        job = self._job

        def missing() -> list[int]:
            return sorted(job.participants() - set(job.barriers.arrived(name, generation)))

        def elsewhere() -> dict[int, str]:
            if watcher is None or job.barriers.is_released(name, generation):
                return {}
            return self._whereabouts.elsewhere(watcher, missing())

        try:
            async with asyncio.timeout(park_s), self._changed:
                await self._changed.wait_for(
                    lambda: (
                        job.barriers.is_released(name, generation) or job.failure or elsewhere()
                    )
                )
        except TimeoutError:
            pass
        job.raise_failure()
        if job.barriers.is_released(name, generation):
            ranks = list(job.barriers.took_part(name, generation))
            return Message(fields={"released": True, "arrived": ranks, "missing": []})
        answer: dict[str, Any] = {
            "released": False,
            "arrived": job.barriers.arrived(name, generation),
            "missing": missing(),
        }
        if others := elsewhere():
            answer["elsewhere"] = [[other, at] for other, at in others.items()]
        return Message(fields=answer)

    async def _evict_lost(self) -> None:
        """Let the registry refuse what lost workers write."""
        for lost in self._job.losses.due():
            await self._job_registry.evict(lost, standing=self._job.barriers.open())
            self._job.losses.settle(lost)

    async def _settle(self) -> None:
        """Let go the barriers that are complete."""
        releases = self._job.barriers.settle(self._job.participants())
        for release in releases:
            await self._job_registry.release(release)
        if releases:
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _require_job(self, fields: RequestFields) -> None:
        asked = fields.text("job")
        if asked != self._name:
            raise WrongJobError(asked=asked, served=self._name)

    def _require_launch(self, newcomer: Member) -> None:
        """Refuse a member of another launch; one that was started by hand is of none.

        Raises:
            OtherLaunchError: naming the launch that the job is of.
        """
        own = self._job_registry.member
        if own.launch and newcomer.launch not in {"", own.launch}:
            raise OtherLaunchError(job=self._name, holder=coordinator_of(own))

    def _describe(self, place: Place, now: float) -> dict[str, Any]:
        member = place.member
        waits_s = self._job.waits_s(place)
        waits_s = waits_s if waits_s is None else round(waits_s, 1)
        return {
            "role": member.role,
            "index": member.index,
            "incarnation": member.incarnation,
            "endpoint": member.endpoint,
            "admin": member.admin,
            "host": member.host,
            "pid": member.pid,
            "alive": place.end not in {"left", "lost"}
            and not self._job.members.is_silent(place),
            "last_seen_s": round(now - place.renewed_at, 3),
            "process": member.process or None,
            "silent_s": round(now - place.renewed_at, 3)
            if waits_s is not None or (place.may_die and self._job.members.is_silent(place))
            else None,
            "waits_s": waits_s,
            "vouched": place.vouched,
            "done": place.end in {"done", "left"} and waits_s is None,
            "lost": place.why or "lost" if place.end == "lost" else None,
            "facts": dict(self._snapshot.facts.get(member.key, {})),
        }

    def _describe_barrier(self, name: str, generation: int) -> dict[str, Any]:
        arrived = self._job.barriers.arrived(name, generation)
        missing = sorted(self._job.participants() - set(arrived))
        return {"name": name, "generation": generation, "arrived": arrived, "missing": missing}


def _merge_tables(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tables that pservers published.

    Numbers are sums over the pservers, the version is the latest, the tier names the disk if
    one of them has rows there, and ``shards`` are those used most of all.
    """
    merged: dict[str, dict[str, Any]] = {}
    for member in members:
        if member["role"] != "pserver":
            continue
        for table in member["facts"].get("tables", ()):
            total = merged.setdefault(table["name"], {"name": table["name"]})
            for key, value in table.items():
                if key == "shards":
                    here = [{**shard, "server": member["index"]} for shard in value]
                    total[key] = _busiest([*total.get(key, ()), *here])
                elif key == "tier":
                    total[key] = max(value, total.get(key, value), key=len)
                elif not isinstance(value, int | float) or isinstance(value, bool):
                    total[key] = value
                elif key == "version":
                    total[key] = max(value, total.get(key, value))
                else:
                    total[key] = value + total.get(key, 0)
    return [merged[name] for name in sorted(merged)]


def _busiest(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the shards of which most rows were read and changed; of equal ones the largest."""

    def use(shard: dict[str, Any]) -> tuple[int, int, int]:
        return -(shard["pulled"] + shard["pushed"]), -shard["rows"], shard["shard"]

    return sorted(shards, key=use)[:_TOP_SHARDS]
