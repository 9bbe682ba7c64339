"""Who owns a group: recovery, takeover beside a living owner, and handover."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, Command, Kind
from tests.recovery.servers.copies import (
    CopyName,
    MemoryCopy,
    Ownership,
    Pserver,
    names_memory,
)
from tests.recovery.servers.durability import follow
from tests.recovery.world import World

NEAR = 3  # commands that a successor may lack when the owner fences


class Owners:
    """Changes the registry, and what pservers do when they read it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def learn(self) -> None:
        """One pserver reads the registry."""
        pserver = self._world.random.choice(self._world.pservers)
        if not pserver.up:
            return
        for group, entry in self._world.registry.items():
            if entry.owner == (pserver.index, pserver.incarnation):
                self._begin(pserver, group, entry)
            else:
                self._stop(pserver, group, entry)

    def _begin(self, pserver: Pserver, group: int, entry: Ownership) -> None:
        copy = pserver.copies.get(group)
        if copy is None and CopyName("disk", pserver.index) in entry.eligible:
            copy = MemoryCopy(pserver.disks[group].load(), "follower", 0)
            pserver.copies[group] = copy
        if copy is not None and copy.term < entry.term:
            copy.role = "owner"
            self._fence(copy)
            _begin_term(copy, entry.term)
            self._world.counts["terms"] += 1

    def _fence(self, copy: MemoryCopy) -> None:
        """Refuse incarnations that the registry knows to be replaced; a join may be lost."""
        if self._world.lacks(Defect.NO_FENCES):
            return
        for rank, incarnation in self._world.incarnations.items():
            if copy.state.fences.get(rank, 0) < incarnation:
                copy.execute(Command(Kind.FENCE, rank, incarnation))

    def _stop(self, pserver: Pserver, group: int, entry: Ownership) -> None:
        copy = pserver.copies.get(group)
        if copy is None or copy.term >= entry.term:
            return
        if copy.role == "owner":
            copy.role = "stale"
        if not names_memory(entry.eligible, pserver.index):
            del pserver.copies[group]

    def recover(self) -> None:
        """The coordinator sees an owner's lease end: an eligible copy gets the next term."""
        world = self._world
        group = world.random.choice(GROUPS)
        entry = world.registry[group]
        index, incarnation = entry.owner
        if world.pservers[index].is_up_as(incarnation):
            return
        heirs = [
            world.pservers[name.pserver]
            for name in sorted(entry.eligible)
            if world.pservers[name.pserver].up
            and (name.medium == "disk" or world.copy_at(group, *name[1:]))
        ]
        if heirs:
            heir = world.random.choice(heirs)
            entry.term, entry.owner = entry.term + 1, (heir.index, heir.incarnation)
            world.counts["recoveries"] += 1

    def take_over(self) -> None:
        """A living owner is believed dead, as when it is paused: its replica gets the term."""
        world = self._world
        group = world.random.choice(GROUPS)
        entry = world.registry[group]
        heirs = [
            name
            for name in sorted(entry.eligible)
            if name.medium == "memory"
            and name.pserver != entry.owner[0]
            and world.copy_at(group, *name[1:])
        ]
        if heirs and world.owner(group) is not None and world.spend_fault():
            heir = world.random.choice(heirs)
            entry.term, entry.owner = entry.term + 1, (heir.pserver, heir.incarnation)
            world.counts["takeovers"] += 1

    def hand_over(self) -> None:
        """Take the next step of a handover."""
        group = self._world.random.choice(GROUPS)
        copy = self._world.owner(group)
        if copy is None:
            return
        if copy.successor is None:
            self._choose_successor(group, copy)
            return
        follower = copy.followers.get(copy.successor)
        early = self._world.lacks(Defect.HANDOVER_WITHOUT_TAIL)
        if follower is None or not self._world.copy_at(
            group, copy.successor, follower.incarnation
        ):
            self._cancel(group, copy)
        elif not copy.fenced:
            copy.fenced = follower.position >= copy.state.position - NEAR or early
        elif follower.position >= copy.state.position or early:
            self._switch(group, copy.successor, follower.incarnation)

    def _choose_successor(self, group: int, copy: MemoryCopy) -> None:
        world = self._world
        free = world.free_pservers(group)
        if not free or not copy.reports:
            return
        if world.random.random() < 0.8 or not world.spend_fault():
            return
        copy.successor = world.random.choice(free)
        follow(world, group, copy, copy.successor)

    def _cancel(self, group: int, copy: MemoryCopy) -> None:
        """Cancel by a term of one's own, so that the switch can't come later."""
        copy.successor = None
        if copy.fenced:
            entry = self._world.registry[group]
            entry.term += 1
            _begin_term(copy, entry.term)

    def _switch(self, group: int, index: int, incarnation: int) -> None:
        """Name the new owner; the old one's copies stay eligible until it has its own."""
        entry = self._world.registry[group]
        frozen = {CopyName("memory", *entry.owner)}
        if self._world.on_disk:
            frozen.add(CopyName("disk", entry.owner[0]))
        entry.term, entry.owner = entry.term + 1, (index, incarnation)
        entry.eligible = frozenset(frozen)
        self._world.counts["handovers"] += 1


def _begin_term(copy: MemoryCopy, term: int) -> None:
    copy.execute(Command(Kind.TERM, term=term))
    copy.begin_term(term)
