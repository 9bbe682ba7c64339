"""What processes know of groups, after a coordinator was started again.

The registry may have come back with older data at the same time: then it names owners of terms
that are over, and copies that were removed from a set since. Processes know better. Each says
what it has read of every group, and an owner what it knows to be written. Of each group that
holds with the greatest term, and in that the greatest number of a proposal. For one lease
nothing is decided, so that all who live have spoken.

Nothing here waits or reads a clock: ``now`` is an argument, in seconds.
"""

from dataclasses import dataclass, replace

from paramfleet_shared.discovery.plan import GroupPlan, ProcessId

__all__ = ["NotedOwner", "Settling"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedOwner:
    """A process that has a group by the registry's members."""

    group: int
    process: ProcessId
    term: int
    on_disk: bool


class Settling:
    """The time in which processes say what they know.

    Args:
        lease_s: How long that is, from the first look on.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._until: float | None = None
        self._known: dict[int, GroupPlan] = {}
        self._owners: dict[int, NotedOwner] = {}
        self.version = 0
        """The newest plan that any process knows."""

    def is_over(self, now: float) -> bool:
        """Return whether all who live have had the time to speak."""
        if self._until is None:
            self._until = now + self._lease_s
        return now >= self._until

    def note_known(self, group: int, known: GroupPlan) -> None:
        """Take what a process knows of a group to be in the registry."""
        best = self._known.get(group)
        if best is None or _age(known) > _age(best):
            self._known[group] = known

    def note_version(self, version: int) -> None:
        """Take which plan a process knows."""
        self.version = max(self.version, version)

    def note_owner(self, owner: NotedOwner) -> None:
        """Take who has a group, as soon as it is known from which state it went on."""
        noted = self._owners.get(owner.group)
        if noted is None or owner.term > noted.term:
            self._owners[owner.group] = owner

    def newest(self, group: int, own: GroupPlan) -> GroupPlan:
        """Return what holds of a group: what the registry had, unless somebody knows better.

        Who takes it over, and whether it moves, is decided anew.
        """
        known = self._known.get(group)
        if known is None or _age(known) <= _age(own):
            return own
        return replace(known, target=None, heir=None)

    def owners(self) -> list[NotedOwner]:
        """Return who was noted meanwhile."""
        return list(self._owners.values())


def _age(known: GroupPlan) -> tuple[int, int]:
    return known.term, known.number
