"""Decides which process hosts, follows and gets which group.

Takes what is known of the processes, and returns what it has decided for the log; the decisions
themselves are ``plan``. One group moves at a time. The owner of one that has begun changes
when the registry has given the new one its term (``note_owner``), which the plan must name.

Nothing here waits, logs or reads a clock: ``now`` is an argument, in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paramfleet_coordinator.core.groups.choosing import (
    Process,
    beginner_for,
    follower_for,
    leaves_copy,
    next_move,
)
from paramfleet_coordinator.core.groups.errors import (
    NotPlannedError,
    ScaleRefusedError,
    SettlingError,
    StaleProposalError,
    StaleTermError,
)
from paramfleet_coordinator.core.groups.settling import NotedOwner, Settling
from paramfleet_shared.discovery.plan import DISK, GroupPlan, Plan, ProcessId

__all__ = ["SURPLUS_S", "PlanEvent", "PlanRules", "Planner"]


SURPLUS_S = 10.0
"""For so long there must be more processes than wanted, until some are drained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanEvent:
    """Something that was decided, as a log event and its fields."""

    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRules:
    """What plans go by; times in seconds."""

    start_processes: int
    """How many processes must have come before groups are given out."""

    replicas: int = 0
    """Followers of each group: 0 or 1."""

    replica_grace_s: float = 10.0
    """How long a group may be without a follower before it is named unprotected."""

    move_timeout_s: float = 120.0
    """How long a move may take; then it is given up, and tried again later."""

    retry_s: float = 5.0
    """From a move that was given up to the next one."""


@dataclass(slots=True)
class _Watch:
    """What is remembered of a group, and not written."""

    bare_since: float | None = None
    """Since when it has had no registered follower."""

    is_unprotected: bool = False
    move_since: float | None = None


class Planner:
    """The plan of one run, and how it changes.

    Args:
        num_groups: Of the job.
        rules: What it goes by.
        plan: That of a former coordinator; None for a new run.
    """

    def __init__(self, num_groups: int, *, rules: PlanRules, plan: Plan | None = None) -> None:
        self._rules = rules
        self.plan = plan or Plan(
            groups=(GroupPlan(),) * num_groups, replica_grace_s=rules.replica_grace_s
        )
        self._watches = [_Watch() for _ in self.plan.groups]
        self._no_move_before = 0.0
        self._surplus_since: float | None = None
        """Since when there have been more processes than an operator wants."""
        self._settling: Settling | None = None
        self.moves = 0
        """How many moves were finished."""
        self.takeovers = 0
        """How many groups were taken over."""

    @property
    def unprotected(self) -> list[int]:
        """Return the groups that are named as without a follower."""
        return [group for group, watch in enumerate(self._watches) if watch.is_unprotected]

    @property
    def moving(self) -> int | None:
        """Return the group that moves; None if none does."""
        return next((g for g, each in enumerate(self.plan.groups) if each.target), None)

    def resume(self, plan: Plan) -> None:
        """Go on with a plan that is newer than the own, as a former coordinator's."""
        if plan.version > self.plan.version:
            self.plan = plan

    def settle(self, *, lease_s: float) -> None:
        """Decide nothing for one lease: the registry may have older data than processes."""
        self._settling = Settling(lease_s)

    def note_known(self, version: int, known: Mapping[int, GroupPlan]) -> None:
        """Take what a process knows to be in the registry.

        Args:
            version: Of the newest plan that it has read.
            known: What it knows of groups.
        """
        settling = self._settling
        if settling is not None:
            settling.note_version(version)
            for group, own in known.items():
                if 0 <= group < len(self.plan.groups):
                    settling.note_known(group, own)
        elif version > self.plan.version:  # it was silent meanwhile, and reads newer ones only
            self.plan = replace(self.plan, version=version + 1)

    def decide(self, processes: Sequence[Process], *, now: float) -> list[PlanEvent]:
        """Change the plan as the processes ask for; returns what was decided."""
        settled: list[PlanEvent] = []
        if self._settling is not None:
            if not self._settling.is_over(now):
                return []
            settled = self._end_settling(self._settling)
        before = self.plan
        alive = {each.id: each for each in processes if each.alive}
        self._drop_gone(processes, alive)
        self._drain_surplus(alive, now)
        events = settled + self._begin(alive)
        for group in range(len(self.plan.groups)):
            events += self._replace_dead(group, alive)
            events += self._give_up_move(group, alive, now)
            events += self._choose_follower(group, alive)
            events += self._look_at_protection(group, alive, now)
        events += self._move(alive, now)
        indexes = tuple(sorted(each.index for each in alive))
        self._set(before, replace(self.plan, processes=indexes))
        return events

    def require_owner(self, group: int, process: ProcessId, *, succeeds: int) -> None:
        """Pass if a process may own a group from now on.

        Args:
            group: Which.
            process: Who asks.
            succeeds: The term that it goes on from; 0 begins the group.

        Raises:
            NotPlannedError: if it may not.
            SettlingError: if that isn't known as yet.
        """
        own = self._of(group, process)
        self._require_settled(group)
        entitled = {own.heir} if own.heir is not None else {own.owner, own.target}
        if process not in entitled or succeeds != own.term:
            raise NotPlannedError(
                group=group, process=process.text, owner=_owner_of(own), term=own.term
            )

    def note_owner(
        self, group: int, process: ProcessId, term: int, *, on_disk: bool = False
    ) -> list[PlanEvent]:
        """Note that the registry gave a process a group under a term; an older one is over.

        Args:
            group: Which.
            process: Its owner from now on.
            term: Under which.
            on_disk: Whether it keeps the group on its disk, or is about to.
        """
        own = self.plan.of(group)
        if term <= own.term:
            return []
        if self._settling is not None:  # the sets that it goes on with may be older ones
            noted = NotedOwner(group=group, process=process, term=term, on_disk=on_disk)
            self._settling.note_owner(noted)
            return []
        before, watch = self.plan, self._watches[group]
        is_move, is_takeover = own.target == process, own.heir == process
        is_new = process != own.owner or not own.since_term
        follower = None if own.follower == process else own.follower
        changes: dict[str, Any] = {"on_disk": on_disk}  # who goes on keeps its copies
        if is_new:
            changes["since_term"], changes["eligible"], changes["number"] = term, (), 0
            changes["inherited"] = tuple(each for each in own.heirs if each != process.text)
            changes["inherited_term"] = own.since_term if own.eligible else own.inherited_term
        if is_new and not is_move and not is_takeover:  # it begins, or has a disk that has all
            # its disk is the one that is named, until it has proposed: it may die before it
            # learns of its term, and then its disk says nothing of that
            changes["inherited"] = ()
            changes["is_new"] = on_disk and (own.is_new or not own.term)
        plan = self.plan.with_group(
            group,
            owner=process, term=term, follower=follower, target=None, heir=None, **changes,
        )  # fmt: skip
        watch.move_since = watch.bare_since = None
        self._set(before, plan)
        facts: dict[str, Any] = {"group": group, "member": process.text, "term": term}
        if not own.term:
            return []
        name = "group.moved" if is_move else "group.taken_over" if is_takeover else "group.back"
        self.moves += is_move
        self.takeovers += is_takeover
        former = "" if own.owner is None else f" from process {own.owner.index}"
        words = f"group {group} is process {process.index}'s{former} (term {term})"
        return [PlanEvent(event=name, facts={**facts, "reason": words})]

    def set_eligible(
        self, group: int, term: int, copies: Sequence[str], *, number: int, by: ProcessId
    ) -> None:
        """Write which copies of a group may be gone on with, as its owner proposes.

        A name that comes twice is written once. Who was named before may be named again, also
        if it has ended: no dead process is made an heir.

        Args:
            group: Which.
            term: Under which the owner has it.
            copies: Names of all: followers, and ``DISK`` for the owner's own disk.
            number: Of the proposal. The newest one may be repeated.
            by: Who asks.

        Raises:
            NotPlannedError: if another process has the group, or one of the names is that of
                the owner, whose memory ends with it, or of a process that doesn't follow it.
            SettlingError: if the newest sets aren't known as yet.
            StaleProposalError: if a newer one was written.
            StaleTermError: if the group is owned under another term by now, or is being taken
                over.
        """
        own = self._of(group, by)
        self._require_settled(group)
        if own.term != term or own.heir is not None:
            raise StaleTermError(group=group, term=term, newest=own.term)
        if by != own.owner:
            raise NotPlannedError(
                group=group, process=by.text, owner=_owner_of(own), term=own.term
            )
        if number == own.number:
            return
        if number < own.number:
            raise StaleProposalError(group=group, number=number, newest=own.number)
        following = {each.text for each in (own.follower, own.target) if each is not None}
        allowed = {DISK, *following, *own.eligible} - {by.text}
        for each in copies:
            if each not in allowed:
                raise NotPlannedError(
                    group=group, process=each, owner=_owner_of(own), term=own.term
                )
        plan = self.plan.with_group(
            group,
            eligible=tuple(sorted({*copies} - {DISK})),
            number=number,
            inherited=(),
            disk_term=own.since_term if DISK in copies else 0,
            is_new=False,
        )
        self._set(self.plan, plan)

    def cancel_move(self, group: int, process: ProcessId, *, now: float) -> None:
        """Give a move up that its target can't finish; another is tried later.

        Raises:
            NotPlannedError: if there is no such group.
        """
        if self._of(group, process).target == process:
            self._no_move_before = now + self._rules.retry_s
            self._watches[group].move_since = None
            self._set(self.plan, self.plan.with_group(group, target=None))

    def scale(self, wanted: int, processes: Sequence[Process]) -> None:
        """Have so many processes: those beyond give up what they have, and end.

        Raises:
            ScaleRefusedError: if the job can't have so many.
        """
        most = len(self.plan.groups)
        if not 1 <= wanted <= most:
            start = self._rules.start_processes
            reason = (
                f"the job has {most} groups, and a process needs one; for more start it with "
                f"--server_num={start}:{wanted} (the coordinator's server_num)"
                if wanted > most
                else "at least one process must host the groups"
            )
            raise ScaleRefusedError(wanted=wanted, reason=reason)
        alive = sorted(each.id for each in processes if each.alive)
        keep = set(alive[:wanted])
        draining = tuple(each for each in alive if each not in keep)
        self._set(self.plan, replace(self.plan, wanted=wanted, draining=draining))

    def drain(self, process: ProcessId) -> None:
        """Let a process give up what it has, as it is asked to end."""
        if process not in self.plan.draining:
            draining = tuple(sorted({*self.plan.draining, process}))
            self._set(self.plan, replace(self.plan, draining=draining))

    def is_survivable(self, group: int, processes: Sequence[Process]) -> bool:
        """Return whether a group whose owner is dead may come back, or begin anew."""
        if self._settling is not None:
            return True
        own = self.plan.of(group)
        alive = {each.id.text for each in processes if each.alive}
        heir = own.heir is not None and own.heir.text in alive
        return heir or bool(alive & set(own.heirs)) or (own.is_new and bool(alive))

    # -- parts of a decision

    def _end_settling(self, settling: Settling) -> list[PlanEvent]:
        """Let of each group hold what is known with the greatest term and number."""
        self._settling = None
        before = self.plan
        groups = [settling.newest(*each) for each in enumerate(before.groups)]
        older = [group for group, own in enumerate(groups) if own != before.of(group)]
        version = max(before.version, settling.version)
        self.plan = replace(before, groups=tuple(groups), version=version)
        if older or version > before.version:
            self.plan = replace(self.plan, version=version + 1)
        events = [
            PlanEvent(
                event="group.settled",
                facts={
                    "group": group,
                    "term": self.plan.of(group).term,
                    "reason": f"the registry (Redis) had older data of group {group} than "
                    "processes",
                },
            )
            for group in older
        ]
        for each in settling.owners():
            events += self.note_owner(each.group, each.process, each.term, on_disk=each.on_disk)
        return events

    def _require_settled(self, group: int) -> None:
        """Pass if decisions are made.

        Raises:
            SettlingError: if not.
        """
        if self._settling is not None:
            raise SettlingError(group=group)

    def _begin(self, alive: Mapping[ProcessId, Process]) -> list[PlanEvent]:
        """Give groups to processes that have none: at the start in equal, contiguous blocks."""
        usable = sorted(each for each in alive if each not in self.plan.draining)
        unowned = [
            group
            for group, own in enumerate(self.plan.groups)
            if not own.term and (own.owner is None or own.owner not in alive)
        ]
        if not unowned or len(usable) < self._rules.start_processes:
            return []
        num = len(self.plan.groups)
        plan = self.plan
        for group in unowned:
            plan = plan.with_group(group, owner=usable[group * len(usable) // num])
        self.plan = plan
        words = f"{len(unowned)} groups are given to {len(usable)} processes"
        return [PlanEvent(event="groups.assigned", facts={"reason": words})]

    def _replace_dead(self, group: int, alive: Mapping[ProcessId, Process]) -> list[PlanEvent]:
        """Name who goes on with a group whose owner is dead."""
        own = self.plan.of(group)
        if not own.term or own.owner is None or own.owner in alive:
            return []
        if own.heir is not None:
            if own.heir in alive:
                return []
            self.plan = self.plan.with_group(group, heir=None)
        if own.is_new:
            return self._begin_anew(group, alive)
        heirs = sorted(each for each in alive if each.text in own.heirs)
        if not heirs:
            return self._recover(group, alive)
        self.plan = self.plan.with_group(group, heir=heirs[0], target=None)
        words = (
            f"the owner of group {group}, process {own.owner.index}, is gone; "
            f"process {heirs[0].index} takes it over"
        )
        facts = {"group": group, "member": heirs[0].text, "reason": words}
        return [PlanEvent(event="group.takeover", facts=facts)]

    def _recover(self, group: int, alive: Mapping[ProcessId, Process]) -> list[PlanEvent]:
        """Give a group to a process whose disk has it."""
        own = self.plan.of(group)
        assert own.owner is not None, "it is dead"
        former = own.owner.index
        able = [
            each
            for each in alive.values()
            if own.disk_term and each.holds.get(group, 0) >= own.disk_term
        ]
        if not able:
            return []
        best = min(able, key=lambda each: (each.id.index != former, each.id))
        self.plan = self.plan.with_group(group, owner=best.id, since_term=0, target=None)
        words = f"process {best.id.index} has group {group} on its disk, and continues with it"
        facts = {"group": group, "member": best.id.text, "reason": words}
        return [PlanEvent(event="group.recovers", facts=facts)]

    def _begin_anew(self, group: int, alive: Mapping[ProcessId, Process]) -> list[PlanEvent]:
        """Give a group that has nothing durable to another process, with what its disk has."""
        former = self.plan.of(group).owner
        assert former is not None, "it is dead"
        beginner = beginner_for(self.plan, group, alive)
        if beginner is None:
            return []
        self.plan = self.plan.with_group(group, owner=beginner, since_term=0, target=None)
        words = (
            f"process {former.index} has ended before anything of group {group} was durable; "
            f"process {beginner.index} begins it from an empty state"
        )
        facts = {"group": group, "member": beginner.text, "reason": words}
        return [PlanEvent(event="group.begins_anew", facts=facts)]

    def _give_up_move(
        self, group: int, alive: Mapping[ProcessId, Process], now: float
    ) -> list[PlanEvent]:
        own, watch = self.plan.of(group), self._watches[group]
        if own.target is None:
            watch.move_since = None
            return []
        watch.move_since = now if watch.move_since is None else watch.move_since
        too_long = now - watch.move_since >= self._rules.move_timeout_s
        if own.target in alive and own.target not in self.plan.draining and not too_long:
            return []
        why = "takes too long" if own.target in alive and too_long else "has lost its target"
        watch.move_since = None
        self._no_move_before = now + (self._rules.retry_s if too_long else 0.0)
        self.plan = self.plan.with_group(group, target=None)
        facts = {"group": group, "reason": f"the move of group {group} {why}, and is given up"}
        return [PlanEvent(event="group.stays", facts=facts)]

    def _choose_follower(
        self, group: int, alive: Mapping[ProcessId, Process]
    ) -> list[PlanEvent]:
        own = self.plan.of(group)
        if not self._rules.replicas or own.owner is None:
            return []
        fits = (
            own.follower in alive
            and own.follower not in self.plan.draining
            and own.follower != own.owner
        )
        if fits or own.heir is not None:
            return []
        chosen = follower_for(self.plan, group, alive)
        if chosen == own.follower:
            return []
        self.plan = self.plan.with_group(group, follower=chosen)
        if chosen is None:
            return []
        facts = {"group": group, "member": chosen.text}
        return [PlanEvent(event="group.followed", facts=facts)]

    def _look_at_protection(
        self, group: int, alive: Mapping[ProcessId, Process], now: float
    ) -> list[PlanEvent]:
        """Name a group that nobody could take over for too long, and one that is back."""
        own, watch = self.plan.of(group), self._watches[group]
        if not self._rules.replicas or not own.term:
            return []
        living = {each.text for each in alive if each != own.owner}
        if living & set(own.eligible):
            watch.bare_since = None
            was, watch.is_unprotected = watch.is_unprotected, False
            facts = {"group": group, "reason": f"group {group} has a follower again"}
            return [PlanEvent(event="group.protected", facts=facts)] if was else []
        watch.bare_since = now if watch.bare_since is None else watch.bare_since
        if watch.is_unprotected or now - watch.bare_since < self._rules.replica_grace_s:
            return []
        watch.is_unprotected = True
        words = (
            f"group {group} has had no follower for {self._rules.replica_grace_s:g} s: the "
            "death of its process loses it; let another process join"
        )
        return [PlanEvent(event="group.unprotected", facts={"group": group, "reason": words})]

    def _move(self, alive: Mapping[ProcessId, Process], now: float) -> list[PlanEvent]:
        """Begin a move if none is under way, and one is useful."""
        if self.moving is not None or now < self._no_move_before:
            return []
        settled = all(each.term and each.owner in alive for each in self.plan.groups)
        if not settled:
            return []
        ready = {g for g in range(len(self.plan.groups)) if self._may_move(g, alive)}
        move = next_move(self.plan, alive, ready)
        while move is not None and not leaves_copy(self.plan, *move, alive):
            ready.discard(move[0])
            move = next_move(self.plan, alive, ready)
        if move is None:
            return []
        group, target = move
        self._watches[group].move_since = now
        own = self.plan.of(group)
        self.plan = self.plan.with_group(group, target=target)
        source = "?" if own.owner is None else own.owner.index
        words = f"group {group} moves from process {source} to process {target.index}"
        facts = {"group": group, "member": target.text, "reason": words}
        return [PlanEvent(event="group.moving", facts=facts)]

    def _may_move(self, group: int, alive: Mapping[ProcessId, Process]) -> bool:
        """Return whether a group is owned in peace, and copied as it is to be."""
        own = self.plan.of(group)
        if own.heir is not None or own.owner not in alive or own.is_new:
            return False
        followed = own.follower is not None and own.follower.text in own.eligible
        bare = own.follower is None or self._watches[group].is_unprotected
        if own.inherited or own.disk_term not in {0, own.since_term}:
            return False
        return not self._rules.replicas or followed or bare

    def _drop_gone(
        self, processes: Sequence[Process], alive: Mapping[ProcessId, Process]
    ) -> None:
        """Forget processes that were to end, and have."""
        known = {each.id for each in processes}
        stay = tuple(each for each in self.plan.draining if each in alive or each not in known)
        if stay != self.plan.draining:
            self.plan = replace(self.plan, draining=stay)

    def _drain_surplus(self, alive: Mapping[ProcessId, Process], now: float) -> None:
        """Drain processes beyond the wanted ones, as one that was dead when that was asked for.

        Not at once: a process that died may count as alive until its lease ends.
        """
        staying = sorted(each for each in alive if each not in self.plan.draining)
        indexes = sorted({each.index for each in staying})
        if not self.plan.wanted or len(indexes) <= self.plan.wanted:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= SURPLUS_S:
            keep = indexes[: self.plan.wanted]
            surplus = [each for each in staying if each.index not in keep]
            self.plan = replace(
                self.plan, draining=tuple(sorted({*self.plan.draining, *surplus}))
            )

    def _of(self, group: int, process: ProcessId) -> GroupPlan:
        """Return the plan of a group.

        Raises:
            NotPlannedError: if there is no such group.
        """
        if not 0 <= group < len(self.plan.groups):
            raise NotPlannedError(group=group, process=process.text, owner="no process", term=0)
        return self.plan.of(group)

    def _set(self, before: Plan, after: Plan) -> None:
        """Have a plan, under a new version if it says anything else."""
        same = replace(after, version=before.version) == before
        self.plan = before if same else replace(after, version=before.version + 1)


def _owner_of(own: GroupPlan) -> str:
    return "no process" if own.owner is None else f"process {own.owner.text}"
