"""What all parts of a run share: its random numbers, processes, registry and messages."""

import random
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from tests.recovery.defects import Defect
from tests.recovery.groups.of_mode import new_state
from tests.recovery.groups.state import GroupState
from tests.recovery.protocol import (
    GROUPS,
    PSERVERS,
    WORKERS,
    Command,
    CopyName,
    Durability,
    Kind,
    Message,
    Mode,
)
from tests.recovery.servers.copies import DiskCopy, MemoryCopy, Ownership, Pserver

if TYPE_CHECKING:
    from tests.recovery.workers.worker import Worker


class ViolationError(AssertionError):
    """A promise of the protocol was broken: its kind, and the facts."""

    def __init__(self, kind: str, facts: str) -> None:
        super().__init__(f"{kind}: {facts}")
        self.kind = kind
        self.facts = facts


def violated(kind: str, facts: str) -> NoReturn:
    """End a run in which a promise was broken.

    Raises:
        ViolationError: Always.
    """
    raise ViolationError(kind, facts)


class World:
    """The processes of a job, and what is on its way between them.

    ``reported`` and ``dead`` are for the checks: no decision of the protocol reads them.
    """

    def __init__(
        self, seed: int, mode: Mode, durability: Durability, defects: frozenset[Defect]
    ) -> None:
        self.random = random.Random(f"{seed}/{mode}/{durability}")
        self.mode = mode
        self.durability = durability
        self._defects = defects
        self._serial = 0
        shared: dict[int, DiskCopy] = {}
        self.shares_folder = self.random.random() < 0.3
        self.pservers = [
            Pserver(index, shared if self.shares_folder else {}) for index in range(PSERVERS)
        ]
        self.registry = {group: self._first_owner(group) for group in GROUPS}
        self.replaced: dict[int, Ownership] | None = None  # by an old registry, of late
        self.incarnations = dict.fromkeys(range(WORKERS), 1)
        self.lost: dict[int, int] = {}  # rank to incarnation of workers that won't come back
        self.known: dict[int, int] = {}  # what groups said of its parts, once it was fenced
        self.workers: list[Worker] = []
        self.dead: list[Worker] = []
        self.believed_dead: list[Worker] = []  # they run on until the quiet end
        self.messages: list[Message] = []
        self.reported: set[tuple[int, int, int, int]] = set()
        self.counts: Counter[str] = Counter()
        self.faults_left = self.random.randint(2, 14)
        self.quiet = False

    @property
    def on_disk(self) -> bool:
        """Return whether a disk is one of the copies."""
        return self.durability is not Durability.REPLICA

    @property
    def in_memory(self) -> bool:
        """Return whether a follower's memory is one of the copies."""
        return self.durability is not Durability.DISK

    def lacks(self, defect: Defect) -> bool:
        """Return whether a rule is left out."""
        return defect in self._defects

    def send(self, message: Message) -> None:
        """Put a message on its way."""
        self.messages.append(message)

    def spend_fault(self) -> bool:
        """Take one of the faults that are left; False when there is none."""
        if self.quiet or self.faults_left <= 0:
            return False
        self.faults_left -= 1
        return True

    def copy_at(self, group: int, index: int, incarnation: int) -> MemoryCopy | None:
        """Return a group's copy in one incarnation of a pserver."""
        pserver = self.pservers[index]
        return pserver.copies.get(group) if pserver.is_up_as(incarnation) else None

    def copy_named(self, group: int, name: CopyName) -> MemoryCopy | None:
        """Return a copy in memory, if it is still there."""
        copy = self.copy_at(group, name.pserver, name.incarnation)
        return copy if copy is not None and copy.name == name else None

    def state_of(self, group: int, name: CopyName) -> GroupState | None:
        """Return what would be gone on with from a copy, if it is still there."""
        if name.medium == "disk":
            return self.pservers[name.pserver].disks[group].load()
        copy = self.copy_named(group, name)
        return None if copy is None else copy.state

    @property
    def settling(self) -> bool:
        """Return whether the registry may be an old one: nothing is decided yet."""
        return self.replaced is not None

    def said_of(self, group: int, *, but: int | None = None) -> list[Ownership]:
        """Return what pservers know of a group to be written, all but one of them."""
        found = []
        for pserver in self.pservers:
            if not pserver.up or pserver.index == but:
                continue
            if group in pserver.read and not self.lacks(Defect.ONLY_OWNERS_SPEAK):
                found.append(pserver.read[group])
            copy = pserver.copies.get(group)
            if copy is not None and copy.role == "owner":
                counting = copy.counting
                copies = counting.registered or counting.inherited
                process = pserver.index, pserver.incarnation
                written = counting.written_number
                found.append(Ownership(copy.term, process, copies, written))
        return found

    def owner(self, group: int) -> MemoryCopy | None:
        """Return the copy that acts for the registered term."""
        entry = self.registry[group]
        copy = self.copy_at(group, *entry.owner)
        acts = copy is not None and copy.role == "owner" and copy.term == entry.term
        return copy if acts else None

    def new_name(self, index: int) -> CopyName:
        """Return the name of a new copy in the memory of a pserver."""
        self._serial += 1
        return CopyName("memory", index, self.pservers[index].incarnation, self._serial)

    def image_of(self, copy: MemoryCopy) -> GroupState:
        """Return the snapshot of a copy."""
        image = copy.state.copied()
        if self.lacks(Defect.SNAPSHOT_WITHOUT_WINDOWS):
            image.forget_windows()
        return image

    def is_locked(self, pserver: Pserver, group: int) -> bool:
        """Return whether another process has a group's folder open."""
        return self.shares_folder and any(
            other.up and group in other.copies and other.copies[group].disk is not None
            for other in self.pservers
            if other is not pserver
        )

    def check_eligible(self, group: int) -> None:
        """Check that every copy that may be gone on with holds what was reported durable."""
        for name in self.registry[group].eligible:
            state = self.state_of(group, name)
            if state is not None:
                self.check_holds(state, str(name))

    def check_holds(self, state: GroupState, who: str) -> None:
        """Check that a state holds all that was reported durable."""
        for group, rank, incarnation, sequence in self.reported:
            name = state.name_of(rank, incarnation, sequence)
            if group == state.group and name not in state.applied:
                violated("claim", f"{who} lacks {rank}:{sequence} of group {group}")

    def may_take(self, group: int, index: int) -> bool:
        """Return whether a pserver may take a new copy: it is up and holds none."""
        entry, owner = self.registry[group], self.owner(group)
        held = any(each.medium == "memory" and each.pserver == index for each in entry.eligible)
        follows = owner is not None and index in owner.followers
        return self.pservers[index].up and index != entry.owner[0] and not held and not follows

    def free_pservers(self, group: int) -> list[int]:
        """Return the pservers that may take a new copy of a group."""
        return [index for index in range(PSERVERS) if self.may_take(group, index)]

    def _first_owner(self, group: int) -> Ownership:
        pserver = self.pservers[group]
        state = new_state(self.mode, group, self._defects)
        copy = MemoryCopy(state, "owner", 1, self.new_name(group))
        copy.execute(Command(Kind.TERM, term=1))
        pserver.copies[group] = copy
        if not self.on_disk:
            return Ownership(1, (group, 1), frozenset())
        copy.disk = pserver.disks[group] = DiskCopy(state, 1)
        copy.disk_name = CopyName("disk", group, 1)
        copy.counting.registered = frozenset({copy.disk_name})
        return Ownership(1, (group, 1), copy.counting.registered)
