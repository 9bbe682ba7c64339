"""The coordinator: it alone writes the registry, and only if the term is the one it knows."""

from copy import copy as copied
from typing import TYPE_CHECKING

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, CopyName, Propose, Succeed, Written
from tests.recovery.world import World, violated

if TYPE_CHECKING:
    from tests.recovery.servers.copies import Ownership


def _has_disk(names: frozenset[CopyName]) -> bool:
    return any(name.medium == "disk" for name in names)


class Coordinator:
    """Writes what owners propose, and gives terms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._saved: dict[int, Ownership] | None = None

    def proposed(self, message: Propose) -> None:
        """Write which copies are eligible: the whole set, and none that is older."""
        world = self._world
        entry = world.registry[message.group]
        if world.settling or message.term != entry.term:
            return
        if message.number < entry.number and not world.lacks(Defect.LATE_SET_IS_TAKEN):
            return
        names = message.names
        if world.lacks(Defect.INHERITED_DISK_STAYS):
            names |= {name for name in entry.eligible if name.medium == "disk"}
        if _has_disk(entry.eligible) and not _has_disk(names):
            violated("disk", f"group {message.group} is on no disk any more")
        entry.number, entry.eligible = message.number, names
        world.check_eligible(message.group)
        written = Written(group=message.group, term=message.term, number=message.number)
        world.send(written)

    def written(self, message: Written) -> None:
        """An owner learns what the registry names."""
        for pserver in self._world.pservers:
            copy = pserver.copies.get(message.group)
            if copy is not None and copy.role == "owner" and copy.term == message.term:
                copy.counting.written(message.number)

    def asked(self, message: Succeed) -> None:
        """Give the next term to the owner, or to who a group is to move to."""
        world = self._world
        entry = world.registry[message.group]
        target = entry.target
        is_target = target is not None and target[1:3] == message.process
        checked = not world.lacks(Defect.TERM_WITHOUT_FORMER)
        if world.settling or (message.process != entry.owner and not is_target):
            return
        if (checked and message.succeeds != entry.term) or message.succeeds > entry.term:
            return
        if is_target:
            world.counts["handovers"] += 1
        entry.succeeds = entry.term
        entry.source = target if is_target else None
        entry.is_move = is_target
        entry.term, entry.owner = entry.term + 1, message.process
        entry.target, entry.number = None, 0

    def save(self) -> None:
        """Keep a copy of the registry, as Redis does now and then."""
        if self._world.random.random() < 0.3 or self._saved is None:
            registry = self._world.registry.items()
            self._saved = {group: copied(each) for group, each in registry}

    def restore(self) -> None:
        """The registry is back as it was, and the coordinator is started again."""
        world = self._world
        if (
            self._saved is None
            or world.settling
            or any(world.owner(group) is None for group in GROUPS)
        ):
            return
        if not world.spend_fault():
            return
        world.replaced = {group: copied(each) for group, each in world.registry.items()}
        world.registry.update(self._saved)
        self._saved = None
        world.counts["old_registries"] += 1

    def settle(self) -> None:
        """After a lease all were heard: the newest record of each group holds again.

        Processes say what they have read, and owners what they know to be written.
        """
        world = self._world
        if not world.settling:
            return
        world.replaced = None
        for group in GROUPS:
            known = [world.registry[group]]
            if not world.lacks(Defect.OLD_REGISTRY_IS_TAKEN):
                known += world.said_of(group)
            world.registry[group] = copied(max(known, key=lambda each: each.age))
            world.registry[group].target = None
            world.check_eligible(group)
