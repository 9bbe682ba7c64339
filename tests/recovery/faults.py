"""What dies, and what is started again; no more than the protocol promises to survive."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    GROUPS,
    PSERVERS,
    STEPS,
    WORKERS,
    CopyName,
    Mode,
    Propose,
    Succeed,
)
from tests.recovery.servers.copies import Ownership
from tests.recovery.workers.of_mode import new_worker
from tests.recovery.workers.worker import Worker
from tests.recovery.world import World


class Faults:
    """Kills and restarts processes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def crash(self) -> bool:
        """Kill a pserver, unless the job would end by name: no copy would be left."""
        world = self._world
        owners = [world.registry[group].owner[0] for group in GROUPS]
        index = world.random.choice(owners * 2 + list(range(PSERVERS)))
        pserver = world.pservers[index]
        if not pserver.up or not world.spend_fault():
            return False
        if not all(self._survives(group, index) for group in GROUPS):
            world.faults_left += 1
            return False
        keeps_torn = world.lacks(Defect.TORN_RECORD_IS_READ)
        for copy in pserver.copies.values():
            if (disk := copy.disk) is None:
                continue
            survivors = world.random.randint(0, len(disk.log) - disk.synced)
            disk.tear(survivors, keeps_torn=keeps_torn)
        pserver.up, pserver.copies, pserver.read = False, {}, {}
        world.counts["crashes"] += 1
        return True

    def _survives(self, group: int, index: int) -> bool:
        """Return whether a group outlives the memory of a pserver.

        What is on its way to the coordinator may be written yet.
        """
        world = self._world
        entry = (world.replaced or world.registry)[group]
        if world.settling and not self._is_known(group, entry, index):
            return False
        owner = world.copy_at(group, *entry.owner)
        asking = {
            message.process[0]
            for message in world.messages
            if isinstance(message, Succeed) and message.group == group
        }
        stays = owner is not None and entry.owner[0] != index and owner.role == "owner"
        if stays and index not in asking:
            return True
        sets = [entry.eligible] + [
            message.names
            for message in world.messages
            if isinstance(message, Propose) and message.group == group
        ]
        return all(any(self._outlives(group, name, index) for name in each) for each in sets)

    def _is_known(self, group: int, newest: Ownership, index: int) -> bool:
        """Return whether others than a pserver know the newest record, which Redis has lost."""
        world = self._world
        known = [world.registry[group], *world.said_of(group, but=index)]
        if world.lacks(Defect.ONLY_OWNERS_SPEAK) or world.lacks(Defect.OLD_REGISTRY_IS_TAKEN):
            return True
        return max(each.age for each in known) >= newest.age

    def _outlives(self, group: int, name: CopyName, index: int) -> bool:
        if name.medium == "disk":
            return True
        copy = self._world.copy_named(group, name)
        return name.pserver != index and copy is not None

    def fill_disk(self) -> None:
        """Let a disk be full, or have room again."""
        world = self._world
        full = [pserver for pserver in world.pservers if pserver.disk_full]
        if full:
            world.random.choice(full).disk_full = False
        elif world.on_disk and world.spend_fault():
            world.random.choice(world.pservers).disk_full = True
            world.counts["full_disks"] += 1

    def restart(self) -> None:
        """Start a pserver again, with an empty memory."""
        pserver = self._world.random.choice(self._world.pservers)
        if not pserver.up:
            pserver.up = True
            pserver.incarnation += 1

    def kill_worker(self) -> None:
        """Kill a worker, or believe it dead; its next incarnation begins at once."""
        world = self._world
        worker = world.random.choice(world.workers)
        if world.mode is Mode.SHRINK:
            self._lose_worker(worker)
            return
        if any(each.done or not each.may_die for each in world.workers):
            return
        if not world.spend_fault():
            return
        world.dead.append(worker)
        if world.random.random() < 0.5:
            world.believed_dead.append(worker)
        rank = worker.rank
        world.incarnations[rank] += 1
        sync = world.mode is Mode.SYNC
        steps = STEPS if sync else world.random.randint(1, STEPS)
        world.workers[rank] = new_worker(world, rank, world.incarnations[rank], steps)
        world.counts["worker_deaths"] += 1

    def _lose_worker(self, worker: Worker) -> None:
        """Kill a worker, or believe it dead; the others go on without it."""
        world = self._world
        if len(world.workers) < WORKERS or worker.done or not world.spend_fault():
            return
        world.workers.remove(worker)
        world.lost[worker.rank] = worker.incarnation
        world.dead.append(worker)
        if world.random.random() < 0.5:
            world.believed_dead.append(worker)
        world.counts["worker_deaths"] += 1

    def kill_machine(self) -> None:
        """Kill a pserver and a worker at once."""
        if self.crash():
            self.kill_worker()
