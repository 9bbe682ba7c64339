"""Who owns a group: recovery, takeover beside a living owner, and how a term begins."""

from copy import copy as copied

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, Command, CopyName, Kind, Mode
from tests.recovery.servers.copies import MemoryCopy, Ownership, Pserver, names_memory
from tests.recovery.servers.losses import Losses
from tests.recovery.world import World


class Owners:
    """Lets dead owners be replaced, and what pservers do when they read the registry."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._losses = Losses(world)

    def learn(self) -> None:
        """One pserver reads the registry."""
        pserver = self._world.random.choice(self._world.pservers)
        if not pserver.up or self._world.settling:
            return
        for group, entry in self._world.registry.items():
            pserver.read[group] = copied(entry)
            copy = pserver.copies.get(group)
            if entry.owner != (pserver.index, pserver.incarnation):
                self._stop(pserver, group, entry)
            elif copy is None or copy.term < entry.term or copy.role != "owner":
                self._begin(pserver, group, entry)
        self._losses.tell(pserver)

    def _begin(self, pserver: Pserver, group: int, entry: Ownership) -> None:
        """Go on as the owner: with what is here, or with a copy that the registry names."""
        copy = pserver.copies.get(group)
        goes_on = entry.source is None and copy is not None and copy.role == "owner"
        if goes_on and copy is not None and copy.term == entry.succeeds:
            copy.continue_as(entry.term)
            self._world.check_holds(copy.state, "the owner")
            self._world.counts["continued"] += 1
            return
        if entry.source is not None and entry.source.medium == "disk":
            copy = self._load(pserver, group, entry.source)
        if copy is None or (copy.name != entry.source and copy.disk is None):
            return
        is_exact = entry.is_move and copy.attempts.has_asked
        if self._world.lacks(Defect.EXACT_IS_KEPT):
            is_exact = copy.attempts.was_fenced
        copy.role = "owner"
        self._world.check_holds(copy.state, f"the owner of term {entry.term}")
        self._fence(copy)
        # What is noted for GEO goes on after a move: nothing was lost.
        if self._world.mode is not Mode.GEO_ROWS or not is_exact:
            copy.execute(Command(Kind.TERM, term=entry.term))
        copy.begin_term(entry.term, entry.eligible)
        if copy.disk is not None:
            copy.disk.term = entry.term
        self._world.counts["terms"] += 1

    def _load(self, pserver: Pserver, group: int, name: CopyName) -> MemoryCopy:
        disk = pserver.disks[group]
        disk.sync()  # before it is read; a living process may have written to it until now
        copy = MemoryCopy(disk.load(), "follower", 0, self._world.new_name(pserver.index))
        copy.disk, copy.disk_name = disk, name
        pserver.copies[group] = copy
        return copy

    def _fence(self, copy: MemoryCopy) -> None:
        """Refuse incarnations that the registry knows to be replaced; a join may be lost."""
        if self._world.lacks(Defect.NO_FENCES):
            return
        for rank, incarnation in self._world.incarnations.items():
            if copy.state.fences.get(rank, 0) < incarnation:
                copy.execute(Command(Kind.FENCE, rank, incarnation))

    def _stop(self, pserver: Pserver, group: int, entry: Ownership) -> None:
        """Own a group no more; what the registry names is kept."""
        copy = pserver.copies.get(group)
        if copy is None or copy.term >= entry.term:
            return
        if copy.role == "owner":
            copy.role, copy.disk = "stale", None
        if not names_memory(entry.eligible, pserver.index):
            del pserver.copies[group]

    def recover(self) -> None:
        """The coordinator sees an owner's lease end: an eligible copy gets the next term."""
        world = self._world
        group = world.random.choice(GROUPS)
        entry = world.registry[group]
        if world.settling or world.pservers[entry.owner[0]].is_up_as(entry.owner[1]):
            return
        heirs = [
            (name, pserver)
            for name in sorted(entry.eligible)
            for pserver in self._able(group, name)
        ]
        if heirs:
            name, heir = world.random.choice(heirs)
            if name.medium == "disk":
                entry.eligible = frozenset({name})
            self._give(entry, heir, name)
            world.counts["recoveries"] += 1

    def _able(self, group: int, name: CopyName) -> list[Pserver]:
        """Return who may go on with an eligible copy."""
        world, named = self._world, self._world.pservers[name.pserver]
        if name.medium == "memory":
            return [named] if world.copy_named(group, name) is not None else []
        pservers = world.pservers if world.shares_folder else [named]
        return [
            each
            for each in pservers
            if each.up
            and each.disks[group].term >= name.incarnation
            and not world.is_locked(each, group)
        ]

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
            and world.copy_named(group, name) is not None
        ]
        if world.settling or not heirs or world.owner(group) is None:
            return
        if world.spend_fault():
            name = world.random.choice(heirs)
            self._give(entry, world.pservers[name.pserver], name)
            world.counts["takeovers"] += 1

    def _give(self, entry: Ownership, heir: Pserver, source: CopyName) -> None:
        entry.succeeds = entry.term
        entry.term, entry.owner = entry.term + 1, (heir.index, heir.incarnation)
        entry.source, entry.target, entry.is_move, entry.number = source, None, False, 0
