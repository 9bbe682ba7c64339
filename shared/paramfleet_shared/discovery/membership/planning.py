"""What a process that hosts groups asks the coordinator: the plan, and changes of it."""

from collections.abc import Collection, Mapping
from typing import Any

from paramfleet_shared.discovery.membership.life import JobLife
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.plan import GroupPlan, Plan, ProcessId
from paramfleet_shared.discovery.records import Member
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message

__all__ = ["PlanCaller"]

_CALL_TIMEOUT_S = 5.0
"""Seconds of one request, beyond for how long it is held."""


class PlanCaller:
    """The requests of one process; each may be repeated.

    Args:
        channel: To the coordinator, wherever it is.
        member: Who asks.
        job: The job's name.
        life: Gets what is answered.
    """

    def __init__(self, channel: Channel, *, member: Member, job: str, life: JobLife) -> None:
        self._channel = channel
        self._member = member
        self._job = job
        self._life = life

    @property
    def process(self) -> ProcessId:
        """Return who asks."""
        return ProcessId(self._member.index, self._member.incarnation)

    async def wait(
        self,
        *,
        since: int,
        park_s: float,
        holds: Mapping[int, int],
        knows: Mapping[int, GroupPlan],
    ) -> Plan | None:
        """Return a plan that is newer than one; None if there is none in ``park_s``.

        Args:
            since: The version that is known.
            park_s: For how long to wait.
            holds: The newest term of each group that this process's disk has all of.
            knows: What this process knows of groups to be in the registry: a coordinator that
                was started again with a registry of older data goes on with that.

        Raises:
            UnavailableError: if the coordinator can't be reached.
            OutcomeUnknownError: if it doesn't answer.
            FencedError: if another process has this one's place.
            JobFailedError: if the job has failed.
        """
        fields = {
            "since": since,
            "park_s": park_s,
            "holds": {str(group): term for group, term in holds.items()},
            "knows": {str(group): known.to_wire() for group, known in knows.items()},
        }
        answer = await self._ask("plan", fields, timeout_s=park_s + _CALL_TIMEOUT_S)
        if answer.fields.get("placement"):
            self._life.note_placement(Placement.from_wire(answer.fields["placement"]))
        if answer.fields.get("plan"):
            self._life.note_plan(Plan.from_wire(answer.fields["plan"]))
        plan = self._life.plan
        return plan if plan is not None and plan.version > since else None

    async def set_eligible(
        self, group: int, term: int, copies: Collection[str], *, number: int
    ) -> None:
        """Have the registry name these copies of a group, and no others.

        Args:
            group: Which.
            term: Of its owner.
            copies: Their names.
            number: Of this proposal; it grows within a term.

        Raises:
            StaleTermError: if the group is owned under another term by now.
            StaleProposalError: if a newer proposal was written.
            FleetError: as ``wait``; whether it was written isn't known then.
        """
        fields = {"group": group, "term": term, "number": number, "copies": sorted(copies)}
        await self._ask("set_eligible", fields)

    async def cancel_move(self, group: int) -> None:
        """Give a move up that this process can't finish; raises as ``wait``."""
        await self._ask("cancel_move", {"group": group})

    async def drain(self) -> None:
        """Ask for this process's groups to be given to others; raises as ``wait``."""
        await self._ask("drain_process", {})

    async def _ask(
        self, operation: str, fields: Mapping[str, Any], *, timeout_s: float = _CALL_TIMEOUT_S
    ) -> Message:
        own = {"job": self._job, "process": self.process.text}
        message = Message(fields={**own, **fields})
        return await self._channel.call(operation, message, timeout_s=timeout_s)
