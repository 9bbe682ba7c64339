"""What an owner may report durable: what every copy that may become the owner holds."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, Durability
from tests.recovery.servers.copies import (
    CopyName,
    DiskCopy,
    Follower,
    MemoryCopy,
    names_memory,
)
from tests.recovery.world import World


def durable_position(world: World, group: int, index: int, copy: MemoryCopy) -> int:
    """Return the least position over all copies that count, or -1."""
    if world.lacks(Defect.MEMORY_IS_DURABLE):
        return copy.state.position
    if not copy.reports:
        return -1
    positions = []
    for name in copy.counted:
        if name.medium == "disk":
            disk = world.pservers[index].disks[group]
            early = world.lacks(Defect.WRITTEN_IS_DURABLE)
            positions.append(disk.written_position if early else disk.position)
        else:
            follower = copy.followers.get(name.pserver)
            positions.append(-1 if follower is None else follower.position)
    return min(positions, default=-1)


def follow(world: World, group: int, copy: MemoryCopy, index: int) -> None:
    """Give a pserver a snapshot of a group; the log follows."""
    pserver = world.pservers[index]
    mirror = MemoryCopy(copy.state.copied(), "follower", copy.term)
    mirror.positions = dict(copy.positions)
    pserver.copies[group] = mirror
    if world.on_disk:
        pserver.disks[group] = DiskCopy(copy.state)
    copy.followers[index] = Follower(copy.state.position, pserver.incarnation)


class Establishing:
    """Registers the copies that hold all of a new term; only then durability is reported."""

    def __init__(self, world: World) -> None:
        self._world = world

    def step(self) -> None:
        """Take the next step for one group."""
        world = self._world
        group = world.random.choice(GROUPS)
        copy = world.owner(group)
        if copy is None:
            return
        self._remove_lost(copy)
        if copy.reports:
            return
        if not copy.counted:  # the owner counts a copy first, and registers it then
            self._count(group, copy)
            return
        world.registry[group].eligible = copy.counted
        copy.reports = True
        both = world.durability is Durability.BOTH
        if both and world.lacks(Defect.REGISTERED_BEFORE_COUNTED):
            copy.counted = frozenset(name for name in copy.counted if name.medium == "disk")

    def _remove_lost(self, copy: MemoryCopy) -> None:
        lost = [
            index
            for index, follower in copy.followers.items()
            if not self._world.pservers[index].is_up_as(follower.incarnation)
        ]
        for index in lost:
            del copy.followers[index]
            if names_memory(copy.counted, index):
                copy.reports, copy.counted = False, frozenset()
                copy.first_position = copy.state.position

    def _count(self, group: int, copy: MemoryCopy) -> None:
        world = self._world
        index = world.registry[group].owner[0]
        counted = set()
        if world.on_disk:
            if world.pservers[index].disks[group].position < copy.first_position:
                self._report_early(copy, index)
                return
            counted.add(CopyName("disk", index))
        if world.in_memory:
            follower = self._ready_follower(group, copy)
            if follower is None:
                self._report_early(copy, index)
                return
            counted.add(follower)
        copy.counted = frozenset(counted)

    def _ready_follower(self, group: int, copy: MemoryCopy) -> CopyName | None:
        """Return a follower that holds all of the term; have one begin if there is none."""
        early = self._world.lacks(Defect.REGISTERED_BEFORE_COUNTED)
        ready = [
            index
            for index, follower in copy.followers.items()
            if follower.position >= copy.first_position or early
        ]
        if ready:
            index = self._world.random.choice(ready)
            return CopyName("memory", index, copy.followers[index].incarnation)
        if not copy.followers and (free := self._world.free_pservers(group)):
            follow(self._world, group, copy, self._world.random.choice(free))
        return None

    def _report_early(self, copy: MemoryCopy, index: int) -> None:
        if not self._world.lacks(Defect.DURABLE_AT_TAKEOVER):
            return
        copy.reports = True
        copy.counted = frozenset(
            {CopyName("disk", index)}
            if self._world.on_disk
            else {
                CopyName("memory", each, follower.incarnation)
                for each, follower in copy.followers.items()
            }
        )
