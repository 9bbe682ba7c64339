"""What an owner may report durable: what every copy that may become the owner holds."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, CopyName, Durability, Propose
from tests.recovery.servers.copies import DiskCopy, Follower, MemoryCopy, Pserver
from tests.recovery.world import World

NEAR = 3  # commands that a follower may lack when it is counted, or handed the group


def is_unprotected(world: World, copy: MemoryCopy) -> bool:
    """Return whether an owner goes on without copies, as the registry knows."""
    counting = copy.counting
    unwritten = bool(counting.inherited) and not world.lacks(Defect.UNPROTECTED_UNWRITTEN)
    if counting.registered or unwritten or world.durability is not Durability.REPLICA:
        return False
    return counting.grace_is_over


def durable_position(world: World, copy: MemoryCopy) -> int:
    """Return the least position over all copies that count, or -1; it never falls."""
    if world.lacks(Defect.MEMORY_IS_DURABLE):
        return copy.state.position
    counting = copy.counting
    found = _positions(world, copy)
    if is_unprotected(world, copy):
        found.append(copy.state.position)
    elif world.lacks(Defect.DURABLE_AT_TAKEOVER):
        found = found or [copy.state.position]
    elif counting.inherited or not counting.registered:
        return counting.reported
    counting.reported = max(counting.reported, min(found, default=copy.state.position))
    counting.floor = max(counting.floor, counting.reported)
    return counting.reported


def _positions(world: World, copy: MemoryCopy) -> list[int]:
    counting = copy.counting
    early = world.lacks(Defect.REGISTERED_BEFORE_COUNTED)
    found = [
        position
        for name, position in counting.positions.items()
        if not early or name in counting.registered
    ]
    if copy.disk is not None:
        disk, unsynced = copy.disk, world.lacks(Defect.WRITTEN_IS_DURABLE)
        found.append(disk.written_position if unsynced else disk.position)
    return found


def follow(
    world: World, group: int, copy: MemoryCopy, index: int, *, is_replica: bool
) -> CopyName:
    """Give a pserver a snapshot of a group; the log follows."""
    pserver = world.pservers[index]
    name = world.new_name(index)
    mirror = MemoryCopy(copy.state.copied(), "follower", copy.term, name)
    mirror.positions = dict(copy.positions)
    pserver.copies[group] = mirror
    copy.followers[index] = Follower(copy.state.position, name, is_replica)
    return name


class Establishing:
    """Makes copies, and proposes to the coordinator those that hold all that counts."""

    def __init__(self, world: World) -> None:
        self._world = world

    def step(self) -> None:
        """Take the next step of one owner, which may have been replaced."""
        world = self._world
        owners = [
            (group, copy)
            for pserver in world.pservers
            for group, copy in pserver.copies.items()
            if copy.role == "owner"
        ]
        if owners:
            group, copy = world.random.choice(owners)
            self._drop_lost(group, copy)
            self._follow(group, copy)
            self._count(copy)
            self._propose(group, copy)

    def end_grace(self) -> None:
        """A group has had nobody who follows for too long."""
        world = self._world
        copy = world.owner(world.random.choice(GROUPS))
        if copy is None or world.quiet or world.durability is not Durability.REPLICA:
            return
        if not copy.counting.registered and not copy.counting.grace_is_over:
            copy.counting.grace_is_over = True
            world.counts["unprotected"] += 1

    def _drop_lost(self, group: int, copy: MemoryCopy) -> None:
        """Drop who is gone, or only seems to be."""
        world = self._world
        for index, follower in list(copy.followers.items()):
            lost = world.copy_named(group, follower.name) is None
            suspected = not lost and world.random.random() < 0.02 and world.spend_fault()
            if lost or suspected:
                del copy.followers[index]
                forgets = world.lacks(Defect.REMOVED_BEFORE_WRITTEN) or (
                    world.lacks(Defect.UNKNOWN_SET_IS_FORGOTTEN)
                    and follower.name not in copy.counting.registered
                )
                copy.counting.drop(follower.name, forgets=forgets)

    def _follow(self, group: int, copy: MemoryCopy) -> None:
        world = self._world
        replicas = [each for each in copy.followers.values() if each.is_replica]
        if not world.in_memory or replicas or world.owner(group) is not copy:
            return
        if free := world.free_pservers(group):
            follow(world, group, copy, world.random.choice(free), is_replica=True)

    def _count(self, copy: MemoryCopy) -> None:
        for follower in copy.followers.values():
            is_near = follower.position >= copy.state.position - NEAR
            counted = follower.name in copy.counting.positions
            if follower.is_replica and (is_near or counted):
                copy.counting.count(follower.name, follower.position)

    def _propose(self, group: int, copy: MemoryCopy) -> None:
        """Ask for the set that the registry is to name, if it isn't the right one."""
        world, counting = self._world, copy.counting
        durable_position(world, copy)
        names = self._names(copy)
        if counting.is_settled and names == counting.registered:
            return
        awaits_disk = world.on_disk and copy.disk is None
        if not names and counting.inherited and (awaits_disk or not counting.grace_is_over):
            return
        if self._keeps_disk(copy, names):
            return
        number = counting.propose(names)
        world.send(Propose(group=group, term=copy.term, number=number, names=names))

    def _keeps_disk(self, copy: MemoryCopy, names: frozenset[CopyName]) -> bool:
        """Return whether memory would take the place of an inherited disk.

        The own disk is to come; all processes may die before it does.
        """
        inherited = copy.counting.inherited
        is_kept = any(name.medium == "disk" for name in inherited)
        is_lost = not any(name.medium == "disk" for name in names)
        return is_kept and is_lost and not self._world.lacks(Defect.MEMORY_REPLACES_DISK)

    def _names(self, copy: MemoryCopy) -> frozenset[CopyName]:
        counting = copy.counting
        early = self._world.lacks(Defect.REGISTERED_BEFORE_COUNTED)
        names = {
            name
            for name in counting.wanted()
            if counting.positions[name] >= counting.floor
            or name in counting.registered
            or early
        }
        if copy.disk is not None and copy.disk_name is not None:
            has_all = copy.disk.position >= counting.floor
            if has_all or copy.disk_name in counting.registered:
                names.add(copy.disk_name)
        return frozenset(names)


def make_disk(world: World, pserver: Pserver, group: int, copy: MemoryCopy) -> None:
    """Let an owner that went on from memory have its first snapshot on a disk."""
    if world.is_locked(pserver, group):
        return
    disk = DiskCopy(world.image_of(copy), copy.term)
    copy.disk, copy.disk_name = disk, CopyName("disk", pserver.index, copy.term)
    found = pserver.disks.get(group)
    if found is None or found.term <= disk.term:
        pserver.disks[group] = disk
