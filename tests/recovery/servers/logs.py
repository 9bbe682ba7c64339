"""A group's log: written to disk, sent to followers, and cut by snapshots."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import Append, Appended, Command, Kind
from tests.recovery.servers.copies import MemoryCopy
from tests.recovery.servers.durability import make_disk
from tests.recovery.world import World

SYNCED = 0.6  # of the writes, at once; others with a later one
NO_EFFECT = Command(Kind.FENCE)


class Logs:
    """Moves the logs of all pservers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def write(self) -> None:
        """One pserver writes a part of what its disk lacks."""
        world = self._world
        pserver = world.random.choice(world.pservers)
        if not pserver.up or not world.on_disk:
            return
        for copy in pserver.copies.values():
            disk = copy.disk
            if disk is None:
                continue
            missing = copy.log_from(disk.written_position)
            if pserver.disk_full:
                if world.lacks(Defect.FAILED_WRITE_IS_SKIPPED):
                    disk.log += [_without_change(command) for command in missing]
                continue
            count = len(missing) if world.quiet else world.random.randint(0, len(missing))
            disk.log += missing[:count]
            if world.quiet or world.random.random() < SYNCED:
                disk.sync()

    def snapshot(self) -> None:
        """One owner replaces a disk's log by a snapshot, or has its first one."""
        world = self._world
        pserver = world.random.choice(world.pservers)
        if not pserver.up or not pserver.copies or not world.on_disk:
            return
        group = world.random.choice(list(pserver.copies))
        copy = pserver.copies[group]
        if copy.role != "owner" or pserver.disk_full:
            return
        if copy.disk is None:
            make_disk(world, pserver, group, copy)
        else:
            copy.disk.replace(world.image_of(copy))
        if copy.disk is None:
            return  # another process has the folder open
        followed = [follower.position for follower in copy.followers.values()]
        copy.drop_log(min([copy.state.position, *followed]))

    def ship(self) -> None:
        """Owners send their logs to their followers."""
        world = self._world
        for pserver in world.pservers:
            for group, copy in pserver.copies.items() if pserver.up else ():
                if copy.role == "follower" or world.random.random() < 0.3:
                    continue
                self._ship(pserver.index, group, copy)

    def _ship(self, origin: int, group: int, copy: MemoryCopy) -> None:
        target = self._world.registry[group].target
        for follower in copy.followers.values():
            early = self._world.lacks(Defect.HANDOVER_WITHOUT_TAIL)
            if early and follower.name == target:
                continue
            append = Append(
                group=group,
                origin=origin,
                to=follower.name,
                term=copy.term,
                since=copy.since,
                start=follower.position,
                commands=tuple(copy.log_from(follower.position)),
            )
            self._world.send(append)

    def append(self, message: Append) -> None:
        """A follower takes what it lacks, of an owner that lost nothing since its own term."""
        copy = self._world.copy_named(message.group, message.to)
        if copy is None or copy.role != "follower":
            return
        if not message.since <= copy.term <= message.term:
            return
        copy.term = message.term
        if message.start > copy.state.position:
            return
        for command in message.commands[copy.state.position - message.start :]:
            copy.execute(command)
        appended = Appended(
            group=message.group,
            origin=message.to,
            to=message.origin,
            term=message.term,
            position=copy.state.position,
        )
        self._world.send(appended)

    def appended(self, message: Appended) -> None:
        """An owner learns how far a follower is."""
        pserver = self._world.pservers[message.to]
        copy = pserver.copies.get(message.group)
        if not pserver.up or copy is None:
            return
        follower = copy.followers.get(message.origin.pserver)
        same = copy.role == "owner" and copy.since <= message.term <= copy.term
        if same and follower is not None and follower.name == message.origin:
            follower.position = max(follower.position, message.position)


def _without_change(command: Command) -> Command:
    return command if command.sequence is None else NO_EFFECT
