"""What the coordinator answers: the rpc operations ``join`` and ``barrier``, and its status."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paramfleet_coordinator.core.gathering import Gathering
from paramfleet_coordinator.core.job import Decision, Job
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.errors import OtherLaunchError, WrongJobError
from paramfleet_shared.discovery.job_registry import JobRegistry, coordinator_of
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.records import MAX_RUN_ID, Member, Snapshot
from paramfleet_shared.net.rpc.server import Handler, Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.values.texts import MAX_NAME_LENGTH, NAME_RULE, is_name, is_printable

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
        self._snapshot = Snapshot()
        self._decided: list[Decision] = []

    def handlers(self) -> dict[str, Handler]:
        """Return the operations for an ``RpcServer``."""
        return {"join": self._join, "barrier": self._barrier}

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
        if snapshot.job != self._job.record:
            await self._write()
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

    async def give(self, orders: Orders) -> None:
        """Write new orders; members receive them with their next heartbeat.

        Raises:
            NoRedisError: if Redis doesn't answer; the former orders stay then.
        """
        before, self._job.orders = self._job.orders, orders
        try:
            await self._job_registry.write_job(self._job.record)
        except BaseException:
            self._job.orders = before
            raise

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
            "server_num": job.sizes.server_num,
            "num_shards": job.sizes.num_shards,
            "gathering": self._gathering.open_roles(now=now),
            "members": members,
            "barriers": [self._describe_barrier(*use) for use in job.barriers.open()],
            "placement": job.placement.to_wire() if job.placement is not None else None,
            "tables": _merge_tables(members),
        }

    async def _join(self, request: Request) -> Message:
        fields = _Fields(request.message.fields, where="join")
        self._require_job(fields)
        index = fields.optional_integer("index")
        newcomer = Member(
            role=fields.text("role"),
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
        )
        self._require_launch(newcomer)
        await self._gather(newcomer)
        asked_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            place = self._job.join(newcomer, index=index, asked_at=asked_at, now=now)
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
                "known_workers": job.members.num_workers,
                "late": job.has_started and place.role == "worker",
                "released": job.barriers.passed() if sizes.elastic else {},
            }
        )

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
        if returned:  # workers needn't wait for the next look
            await self._write()
        return member

    async def _write(self) -> None:
        failpoint("before_placement_written")
        self._job.adopt(await self._job_registry.write_job(self._job.record))
        failpoint("after_placement_written")

    async def _barrier(self, request: Request) -> Message:
        fields = _Fields(request.message.fields, where="barrier")
        self._require_job(fields)
        name, generation = fields.name("name"), fields.integer("generation")
        rank, incarnation = fields.integer("rank"), fields.integer("incarnation")
        park_s = min(fields.number("park_s"), _MAX_PARK_S)
        job = self._job
        job.raise_failure()
        job.members.require("worker", rank, incarnation=incarnation)
        if not job.barriers.is_released(name, generation):
            job.barriers.require_room(name, generation)
            await self._job_registry.arrive(name, generation, rank)
            job.barriers.arrive(name, generation, rank)
            await self._settle()
        try:
            async with asyncio.timeout(park_s), self._changed:
                await self._changed.wait_for(
                    lambda: job.barriers.is_released(name, generation) or job.failure
                )
        except TimeoutError:
            pass
        job.raise_failure()
        if job.barriers.is_released(name, generation):
            ranks = list(job.barriers.took_part(name, generation))
            return Message(fields={"released": True, "arrived": ranks, "missing": []})
        arrived = job.barriers.arrived(name, generation)
        missing = sorted(job.participants() - set(arrived))
        return Message(fields={"released": False, "arrived": arrived, "missing": missing})

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

    def _require_job(self, fields: "_Fields") -> None:
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


class _Fields:
    """A request's fields, each checked when it is read."""

    def __init__(self, fields: Mapping[str, Any], *, where: str) -> None:
        self._fields = fields
        self._where = where

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        is_short = isinstance(value, str) and len(value) <= MAX_NAME_LENGTH
        if not isinstance(value, str) or not is_short or not is_printable(value):
            rule = f"a text of at most {MAX_NAME_LENGTH} characters, without control characters"
            raise self._malformed(name, rule)
        return value

    def name(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not is_name(value):
            raise self._malformed(name, f"a name: {NAME_RULE}")
        return value

    def optional_text(self, name: str) -> str:
        return "" if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._malformed(name, "a whole number of at least 0")
        return value

    def optional_integer(self, name: str, *, most: int | None = None) -> int | None:
        value = None if self._fields.get(name) is None else self.integer(name)
        if value is not None and most is not None and value > most:
            raise self._malformed(name, f"a whole number of at most {most}")
        return value

    def optional_flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self._malformed(name, "true or false")
        return value

    def number(self, name: str) -> float:
        value = self._fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise self._malformed(name, "a number of at least 0")
        return float(value)

    def _malformed(self, name: str, rule: str) -> MalformedMessageError:
        return MalformedMessageError(where=f"{self._where}.{name}", rule=f"must be {rule}")


def _merge_tables(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tables that pservers published.

    Numbers are sums over the pservers, the version is the latest, and ``shards`` are those
    used most of all.
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
