"""Who follows a group, and which group moves where: choices among living processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paramfleet_shared.discovery.plan import Plan, ProcessId

__all__ = ["Process", "beginner_for", "follower_for", "leaves_copy", "next_move"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process that may host groups, as the coordinator knows it."""

    id: ProcessId
    host: str = ""
    alive: bool = True
    holds: Mapping[int, int] = field(default_factory=dict)
    """The newest term of each group that its disk has all of."""


def follower_for(
    plan: Plan, group: int, alive: Mapping[ProcessId, Process]
) -> ProcessId | None:
    """Return who is to follow a group: on another host if there is one; None for nobody."""
    own = plan.of(group)
    host = alive[own.owner].host if own.owner in alive and own.owner is not None else ""
    follows = [each.follower for each in plan.groups]
    able = [
        each
        for each in alive.values()
        if each.id not in {own.owner, own.target} and each.id not in plan.draining
    ]
    if not able:
        return None
    return min(able, key=lambda each: (each.host == host, follows.count(each.id), each.id)).id


def beginner_for(
    plan: Plan, group: int, alive: Mapping[ProcessId, Process]
) -> ProcessId | None:
    """Return who is to begin a group anew: whose disk has it, else its dead owner's successor.

    Of others that which owns least; None for nobody.
    """
    former = plan.of(group).owner

    def order(each: Process) -> tuple[bool, bool, int, ProcessId]:
        is_successor = former is not None and each.id.index == former.index
        return group not in each.holds, not is_successor, len(plan.owned(each.id)), each.id

    able = [each for each in alive.values() if each.id not in plan.draining]
    return min(able, key=order).id if able else None


def leaves_copy(
    plan: Plan, group: int, target: ProcessId, alive: Mapping[ProcessId, Process]
) -> bool:
    """Return whether a group that moves has a copy beside its new owner.

    That one has none of its own at first. Where owners have disks the group waits for one.
    Where they have none, the only follower may get the group all the same: if it dies before
    it is followed, the job ends.
    """
    own = plan.of(group)
    others = {each.text for each in alive if each != target}
    return not own.on_disk or bool(own.disk_term) or bool(others & set(own.heirs))


def next_move(
    plan: Plan, alive: Mapping[ProcessId, Process], ready: set[int]
) -> tuple[int, ProcessId] | None:
    """Return which group is to move where: away from who ends, else to even out.

    Args:
        plan: As it is; no group moves.
        alive: The living processes.
        ready: The groups that may move.
    """
    loads = {each: len(plan.owned(each)) for each in alive}
    targets = sorted((load, each) for each, load in loads.items() if each not in plan.draining)
    if not targets:
        return None
    for source in sorted(plan.draining):
        own = [group for group in plan.owned(source) if group in ready]
        if own and source in alive:
            return _to(plan, own, targets[0][1])
    least, receiver = targets[0]
    most, giver = targets[-1]
    own = [group for group in plan.owned(giver) if group in ready]
    return _to(plan, own, receiver) if most - least > 1 and own else None


def _to(plan: Plan, groups: list[int], target: ProcessId) -> tuple[int, ProcessId]:
    """Return a move, of a group that the target follows already if there is one."""
    followed = [group for group in groups if plan.of(group).follower == target]
    return (followed or groups)[-1], target
