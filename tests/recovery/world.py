"""What all parts of a run share: its random numbers, processes, registry and messages."""

import random
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from tests.recovery.defects import Defect
from tests.recovery.groups.of_mode import new_state
from tests.recovery.protocol import (
    GROUPS,
    PSERVERS,
    WORKERS,
    Command,
    Durability,
    Kind,
    Message,
    Mode,
)
from tests.recovery.servers.copies import (
    CopyName,
    DiskCopy,
    MemoryCopy,
    Ownership,
    Pserver,
)

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
        self.pservers = [Pserver(index) for index in range(PSERVERS)]
        self.registry = {group: self._first_owner(group) for group in GROUPS}
        self.incarnations = dict.fromkeys(range(WORKERS), 1)
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

    def owner(self, group: int) -> MemoryCopy | None:
        """Return the copy that acts for the registered term."""
        entry = self.registry[group]
        copy = self.copy_at(group, *entry.owner)
        acts = copy is not None and copy.role == "owner" and copy.term == entry.term
        return copy if acts else None

    def may_take(self, group: int, index: int) -> bool:
        """Return whether a pserver may take a new copy: it is up and holds none."""
        entry = self.registry[group]
        held = any(name.pserver == index for name in entry.eligible)
        return self.pservers[index].up and index != entry.owner[0] and not held

    def free_pservers(self, group: int) -> list[int]:
        """Return the pservers that may take a new copy of a group."""
        return [index for index in range(PSERVERS) if self.may_take(group, index)]

    def _first_owner(self, group: int) -> Ownership:
        pserver = self.pservers[group]
        state = new_state(self.mode, group, self._defects)
        copy = MemoryCopy(state, "owner", 1)
        copy.execute(Command(Kind.TERM, term=1))
        pserver.copies[group] = copy
        pserver.disks[group] = DiskCopy(state)
        eligible = {CopyName("disk", group)} if self.on_disk else set()
        return Ownership(1, (group, 1), frozenset(eligible))
