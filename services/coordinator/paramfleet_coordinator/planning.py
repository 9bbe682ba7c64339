"""What processes ask the coordinator about their groups: the plan, and what is to change in it.

A plan is answered only when the registry has it, so that a coordinator that is started again
knows what processes act by.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from paramfleet_coordinator.core.fields import RequestFields
from paramfleet_coordinator.core.groups.hosting import Hosting
from paramfleet_coordinator.core.job import Job
from paramfleet_shared.discovery.errors import OtherHostingError
from paramfleet_shared.discovery.plan import GroupPlan, Plan, ProcessId
from paramfleet_shared.discovery.records import PROCESS, JobRecord, Snapshot
from paramfleet_shared.net.rpc.server import Handler, Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock

__all__ = ["PlanRoutes"]

_MAX_PARK_S = 30.0
"""Seconds a request for a newer plan is held at most, whatever it asks for."""

_MOST_VERSION = 1 << 53
"""Of a plan that a process has read: later ones get greater numbers."""


class PlanRoutes:
    """Serves the plan of one run to its processes.

    Args:
        job: The decisions.
        write: Writes them to the registry.
        require_job: Refuses a request for another job.
        clock: For the time of decisions.
    """

    def __init__(
        self,
        job: Job,
        *,
        write: Callable[[], Awaitable[None]],
        require_job: Callable[[RequestFields], None],
        clock: Clock,
    ) -> None:
        self._job = job
        self._write = write
        self._require_job = require_job
        self._clock = clock
        self._written: Plan | None = None
        self._changed = asyncio.Condition()

    def handlers(self) -> dict[str, Handler]:
        """Return the operations for an ``RpcServer``."""
        return {
            "plan": self._plan,
            "set_eligible": self._set_eligible,
            "cancel_move": self._cancel_move,
            "drain_process": self._drain,
        }

    async def note_written(self, record: JobRecord) -> None:
        """Take what the registry has now, and answer who waits for it."""
        if record.plan is None:
            return
        plan = Plan.from_wire(dict(record.plan))
        if self._written is not None and plan.version <= self._written.version:
            return
        async with self._changed:
            self._written = plan
            self._changed.notify_all()

    async def scale(self, wanted: int) -> tuple[int, int]:
        """Have so many processes; returns how many were wanted, and are.

        Raises:
            ScaleRefusedError: if the job can't have so many.
            OtherHostingError: if its groups aren't planned.
            NoRedisError: if the registry is away; it is done when that is back.
        """
        hosting = self._hosting()
        planner = hosting.planner
        before = planner.plan.wanted or len(planner.plan.processes)
        hosting.scale(wanted)
        hosting.decide(now=self._clock.monotonic())
        await self._write()
        return before, wanted

    @property
    def num_replicas(self) -> int:
        """Return how many copies of each group the job is to have."""
        return self._job.sizes.replicas

    def alive(self) -> list[ProcessId]:
        """Return the processes that live."""
        hosting = self._job.hosting
        return [] if hosting is None else [e.id for e in hosting.processes() if e.alive]

    def describe(self, snapshot: Snapshot | None = None) -> dict[str, Any] | None:
        """Return how groups are hosted, in plain values; None where they aren't planned.

        Args:
            snapshot: What the registry held; owners say in it how far followers are.
        """
        hosting = self._job.hosting
        if hosting is None:
            return None
        planner = hosting.planner
        plan = planner.plan
        return {
            "version": plan.version,
            "wanted": plan.wanted,
            "processes": [
                {
                    "index": each.id.index,
                    "incarnation": each.id.incarnation,
                    "host": each.host,
                    "alive": each.alive,
                    "draining": each.id in plan.draining,
                    "groups": plan.owned(each.id),
                    "follows": [
                        group
                        for group, own in enumerate(plan.groups)
                        if own.follower == each.id
                    ],
                }
                for each in hosting.processes()
            ],
            "groups": [
                {
                    "group": group,
                    "term": own.term,
                    **{
                        name: None if who is None else who.index
                        for name, who in (
                            ("owner", own.owner),
                            ("follower", own.follower),
                            ("moves_to", own.target),
                            ("heir", own.heir),
                        )
                    },
                    "lag": _lag_of(group, own, snapshot),
                    "eligible": list(own.heirs),
                    "on_disk": own.disk_term > 0,
                    "protected": bool(own.heirs) and group not in planner.unprotected,
                }
                for group, own in enumerate(plan.groups)
            ],
            "replicas": self._job.sizes.replicas,
            "unprotected": planner.unprotected,
            "moving": planner.moving,
            "moves": planner.moves,
            "takeovers": planner.takeovers,
        }

    async def _plan(self, request: Request) -> Message:
        """Answer with a plan that is newer than the one that a process knows."""
        fields, hosting, process = self._asked(request, "plan")
        hosting.note_holds(process, fields.terms("holds"))
        since = fields.optional_integer("since", most=_MOST_VERSION) or 0
        park_s = min(fields.number("park_s"), _MAX_PARK_S)
        hosting.note_known(since, fields.groups("knows"))
        try:
            async with asyncio.timeout(park_s), self._changed:
                await self._changed.wait_for(lambda: self._is_newer(since))
        except TimeoutError:
            pass
        self._job.raise_failure()
        plan = self._written if self._is_newer(since) else None
        placement = self._job.placement
        answer = {
            "plan": None if plan is None else plan.to_wire(),
            "placement": None if placement is None else placement.to_wire(),
        }
        return Message(fields=answer)

    async def _set_eligible(self, request: Request) -> Message:
        """Write which copies may be gone on with, as the owner proposes; may be repeated."""
        fields, hosting, process = self._asked(request, "set_eligible")
        group, term = fields.integer("group"), fields.integer("term")
        copies = fields.copies("copies")
        number = fields.integer("number")
        hosting.planner.set_eligible(group, term, copies, number=number, by=process)
        await self._write()
        return Message(fields={"copies": list(copies)})

    async def _cancel_move(self, request: Request) -> Message:
        """Give a move up that its target can't finish; may be repeated."""
        fields, hosting, process = self._asked(request, "cancel_move")
        group, now = fields.integer("group"), self._clock.monotonic()
        hosting.planner.cancel_move(group, process, now=now)
        await self._write()
        return Message()

    async def _drain(self, request: Request) -> Message:
        """Let a process give up what it has, as it is asked to end; may be repeated."""
        _, hosting, process = self._asked(request, "drain_process")
        hosting.planner.drain(process)
        hosting.decide(now=self._clock.monotonic())
        await self._write()
        return Message()

    def _asked(
        self, request: Request, operation: str
    ) -> tuple[RequestFields, Hosting, ProcessId]:
        """Return what a live process asks.

        Raises:
            MalformedMessageError: if a field is wrong.
            OtherHostingError: if groups aren't planned.
            FencedError: if a newer process has its place.
            NotAMemberError: if it isn't known.
        """
        fields = RequestFields(request.message.fields, where=operation)
        self._require_job(fields)
        process = fields.process("process")
        hosting = self._hosting()
        self._job.members.require(PROCESS, process.index, incarnation=process.incarnation)
        return fields, hosting, process

    def _hosting(self) -> Hosting:
        """Return how groups are hosted.

        Raises:
            OtherHostingError: if they aren't planned.
        """
        if self._job.hosting is None:
            raise OtherHostingError(planned=False)
        return self._job.hosting

    def _is_newer(self, since: int) -> bool:
        return self._written is not None and self._written.version > since


def _lag_of(group: int, own: GroupPlan, snapshot: Snapshot | None) -> int | None:
    """Return by how many commands a group's follower is behind, as its owner said last."""
    facts = {} if snapshot is None else snapshot.facts.get(("pserver", group), {})
    following = facts.get("following") or {}
    lags = {each["follower"]: each["lag"] for each in following.get("followers", ())}
    return None if own.follower is None else lags.get(own.follower.text)
