"""The processes of a job whose groups are planned: who lives, and what the plan makes of it."""

from collections.abc import Mapping
from dataclasses import replace

from paramfleet_coordinator.core.groups.choosing import Process
from paramfleet_coordinator.core.groups.planner import PlanEvent, Planner, PlanRules
from paramfleet_coordinator.core.membership import Membership
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.plan import GroupPlan, Plan, ProcessId
from paramfleet_shared.discovery.records import PROCESS, Member

__all__ = ["Hosting"]


class Hosting:
    """Processes and their groups.

    Args:
        members: The places of the job.
        num_groups: Of the job.
        rules: What the plan goes by.
    """

    def __init__(self, members: Membership, *, num_groups: int, rules: PlanRules) -> None:
        self._members = members
        self._rules = rules
        self.planner = Planner(num_groups, rules=rules)
        self._holds: dict[ProcessId, Mapping[int, int]] = {}
        self._known: dict[ProcessId, bool] = {}

    def processes(self) -> list[Process]:
        """Return all processes that have come, and which of them live."""
        return [
            Process(
                id=_id_of(place.member),
                host=place.member.host,
                alive=self._lives(place),
                holds=self._holds.get(_id_of(place.member), {}),
            )
            for place in self._members.of_role(PROCESS)
        ]

    def note_holds(self, process: ProcessId, holds: Mapping[int, int]) -> None:
        """Note which groups, of which term, a process's disk has."""
        self._holds[process] = dict(holds)

    def note_known(self, version: int, known: Mapping[int, GroupPlan]) -> None:
        """Note which plan a process has read, and what it knows of groups."""
        self.planner.note_known(version, known)

    def settle(self, *, lease_s: float) -> None:
        """Let processes say for one lease what they know, before anything is decided."""
        self.planner.settle(lease_s=lease_s)

    def join_group(
        self, newcomer: Member, group: int | None, *, succeeds: int, now: float
    ) -> Member | None:
        """Give a process the group that the plan names it for; None to ask again.

        Raises:
            NotPlannedError: if it isn't named, or goes on from another term.
            SettlingError: if the coordinator has just been started again.
            FencedError: if the process was replaced.
            NotAMemberError: if it isn't known yet.
        """
        known = self._members.find(newcomer)
        if known is not None:
            return known
        process = ProcessId.from_text(newcomer.process)
        self._members.require(PROCESS, process.index, incarnation=process.incarnation)
        index = -1 if group is None else group
        self.planner.require_owner(index, process, succeeds=succeeds)
        successor = replace(newcomer, index=index)
        if self._members.holder("pserver", index) is None:
            return self._members.join(
                newcomer, index=index, asked_at=now, now=now, replaceable=False
            )
        return self._members.take_over(successor, now=now)

    def note_member(self, member: Member) -> list[PlanEvent]:
        """Note that a process owns a group under its term."""
        if not member.process:
            return []
        process = ProcessId.from_text(member.process)
        term, durable = member.incarnation, member.durable
        return self.planner.note_owner(member.index, process, term, on_disk=durable)

    def decide(self, *, now: float) -> list[PlanEvent]:
        """Look at who lives, and plan; returns what was decided."""
        processes = self.processes()
        return [*self._name_changes(processes), *self.planner.decide(processes, now=now)]

    def scale(self, wanted: int) -> Plan:
        """Have so many processes; returns the plan.

        Raises:
            ScaleRefusedError: if the job can't have so many.
        """
        self.planner.scale(wanted, self.processes())
        return self.planner.plan

    def survives(self, place: Place) -> bool:
        """Return whether a group goes on although its place is silent or was left.

        A process that lives may not know yet that it was given a group: the answer was lost,
        and it asks again. For that it has as long as a pserver whose launcher sees it alive.
        """
        index, plan = place.member.index, self.planner.plan
        own = plan.of(index)
        if place.member.process and own.owner is not None and not own.heir:
            process = ProcessId.from_text(place.member.process)
            lives = {each.id for each in self.processes() if each.alive}
            if own.owner in lives and (own.owner != process or self._may_ask_again(place)):
                return True  # another one goes on with it, or this one does
        return self.planner.is_survivable(index, self.processes())

    def _may_ask_again(self, place: Place) -> bool:
        return not place.end and self._members.has_patience(place)

    def _lives(self, place: Place) -> bool:
        """Return whether a process counts as alive.

        Where groups have followers, nobody waits for one that only its launcher sees alive.
        """
        if place.end or place.ended:
            return False
        silent = self._members.is_silent(place)
        return not silent or (not self._rules.replicas and self._members.is_awaited(place))

    def _name_changes(self, processes: list[Process]) -> list[PlanEvent]:
        """Name processes that came, went, or are back."""
        events = []
        for each in processes:
            was = self._known.get(each.id)
            self._known[each.id] = each.alive
            if was == each.alive:
                continue
            name = "process.joined" if each.alive else "process.gone"
            how = "hosts groups" if each.alive else "is gone"
            if each.id in self.planner.plan.draining and not each.alive:
                name, how = "process.drained", "has given up its groups, and ended"
            words = f"process {each.id.index} (incarnation {each.id.incarnation}) {how}"
            facts = {"index": each.id.index, "reason": words}
            events.append(PlanEvent(event=name, facts=facts))
        return events


def _id_of(member: Member) -> ProcessId:
    return ProcessId(member.index, member.incarnation)
