"""A group's log: written to disk, sent to followers, and cut by snapshots."""

from tests.recovery.defects import Defect
from tests.recovery.groups.state import Window
from tests.recovery.protocol import Append, Appended, Command, Kind
from tests.recovery.servers.copies import MemoryCopy
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
        for group, copy in pserver.copies.items():
            disk = pserver.disks.get(group)
            if disk is None or self._is_frozen(copy):
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

    def _is_frozen(self, copy: MemoryCopy) -> bool:
        return copy.role == "stale" and not self._world.lacks(Defect.NO_TERM_CHECK)

    def snapshot(self) -> None:
        """One pserver replaces a disk's log by a snapshot."""
        world = self._world
        pserver = world.random.choice(world.pservers)
        if not pserver.up or not pserver.copies or not world.on_disk:
            return
        group = world.random.choice(list(pserver.copies))
        copy, disk = pserver.copies[group], pserver.disks.get(group)
        if disk is None or copy.role == "stale" or pserver.disk_full:
            return
        image = copy.state.copied()
        if world.lacks(Defect.SNAPSHOT_WITHOUT_WINDOWS):
            incarnations = image.incarnations().items()
            image.windows = {rank: Window(each, set()) for rank, each in incarnations}
        disk.replace(image)
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
        for index, follower in copy.followers.items():
            if index == copy.successor and self._world.lacks(Defect.HANDOVER_WITHOUT_TAIL):
                continue
            append = Append(
                group=group,
                origin=origin,
                to=index,
                incarnation=follower.incarnation,
                term=copy.term,
                start=follower.position,
                commands=tuple(copy.log_from(follower.position)),
            )
            self._world.send(append)

    def append(self, message: Append) -> None:
        """A follower takes what it lacks, of its own term only."""
        copy = self._world.copy_at(message.group, message.to, message.incarnation)
        if copy is None or copy.role != "follower" or copy.term != message.term:
            return
        if message.start > copy.state.position:
            return
        for command in message.commands[copy.state.position - message.start :]:
            copy.execute(command)
        appended = Appended(
            group=message.group,
            origin=message.to,
            to=message.origin,
            incarnation=message.incarnation,
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
        follower = copy.followers.get(message.origin)
        same = copy.role == "owner" and copy.term == message.term
        if same and follower is not None and follower.incarnation == message.incarnation:
            follower.position = max(follower.position, message.position)


def _without_change(command: Command) -> Command:
    return command if command.sequence is None else NO_EFFECT
