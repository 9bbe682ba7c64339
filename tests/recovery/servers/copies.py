"""A group's copies: in the memory of a pserver, and on a disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.recovery.groups.state import GroupState
from tests.recovery.protocol import EMPTY, Command, CopyName, Reply
from tests.recovery.servers.counting import Counting


class DiskCopy:
    """A snapshot, and the log behind it; ``synced`` commands of the log survive a crash.

    ``term`` is that of the last owner that wrote here.
    """

    def __init__(self, state: GroupState, term: int) -> None:
        self.snapshot = state.copied()
        self.log: list[Command] = []
        self.synced = 0
        self.term = term

    @property
    def position(self) -> int:
        """Return how many commands of the group are sure to survive."""
        return self.snapshot.position + self.synced

    @property
    def written_position(self) -> int:
        """Return how many commands of the group were written."""
        return self.snapshot.position + len(self.log)

    def replace(self, image: GroupState) -> None:
        """Begin anew with a snapshot."""
        self.snapshot, self.log, self.synced = image, [], 0

    def sync(self) -> None:
        """Make what was written survive."""
        self.synced = len(self.log)

    def tear(self, survivors: int, *, keeps_torn: bool) -> None:
        """Lose what wasn't synced, but for some whole records; the next one is cut in two."""
        tail = self.log[self.synced :]
        del self.log[self.synced + survivors :]
        if keeps_torn and survivors < len(tail):
            self.log.append(tail[survivors]._replace(part=EMPTY))
        self.sync()  # the next process does, before it reads

    def load(self) -> GroupState:
        """Return the state that is sure to survive."""
        state = self.snapshot.copied()
        for command in self.log[: self.synced]:
            state.apply(command)
        return state


@dataclass
class Follower:
    """What an owner knows of a copy that follows its log; a move's isn't waited for."""

    position: int
    name: CopyName
    is_replica: bool


@dataclass
class Hold:
    """Changes wait for a cut; with ``limits``, those up to them are let through."""

    limits: Mapping[int, int] | None = None


@dataclass
class Attempts:
    """A follower's attempts to become the owner.

    ``fenced`` is where the owner has stopped, under ``term``; ``was_fenced`` is for a defect.
    """

    number: int = 1
    fenced: int | None = None
    term: int = 0
    has_asked: bool = False
    was_fenced: bool = False


class MemoryCopy:
    """A group's copy in the memory of a pserver: owner, follower, or an owner no more."""

    def __init__(
        self,
        state: GroupState,
        role: Literal["owner", "follower", "stale"],
        term: int,
        name: CopyName,
    ) -> None:
        self.state = state
        self.role = role
        self.name = name
        self.log: list[Command] = []  # what may still be sent to followers, or written
        self.log_start = state.position
        self.positions: dict[tuple[int, int], int] = {}  # of changes in the log
        self.disk: DiskCopy | None = None
        self.disk_name: CopyName | None = None
        self.begin_term(term, frozenset())

    def begin_term(self, term: int, inherited: frozenset[CopyName]) -> None:
        """Begin as the owner of a term; the registry names copies of the former owner."""
        self.term = self.since = term
        self.followers: dict[int, Follower] = {}
        self.counting = Counting(inherited, floor=self.state.position)
        self.hold: Hold | None = None
        self.last_cut = 0
        self.reopen()
        self.undone: dict[CopyName, int] = {}  # a follower's attempts that were given up
        self.attempts = Attempts()

    def continue_as(self, term: int) -> None:
        """Go on as the owner under a new term: nothing was lost."""
        self.term = term
        self.hold, self.last_cut = None, 0
        self.counting.begin_term()
        if self.fenced_for is not None:
            follower, attempt = self.fenced_for
            self.undone[follower] = attempt
        self.reopen()

    def reopen(self) -> None:
        """Execute changes again, or from now on."""
        self.fenced_for: tuple[CopyName, int] | None = None  # a handover's attempt

    def execute(self, command: Command) -> Reply | None:
        """Log a command and apply it."""
        self.log.append(command)
        reply = self.state.apply(command)
        if command.sequence is not None:
            self.positions[command.rank, command.sequence] = self.state.position
        return reply

    def log_from(self, position: int) -> list[Command]:
        """Return the commands behind a position."""
        return self.log[position - self.log_start :]

    def drop_log(self, position: int) -> None:
        """Forget the commands up to a position."""
        del self.log[: position - self.log_start]
        self.log_start = max(self.log_start, position)


@dataclass
class Ownership:
    """What the registry says of a group.

    ``number`` is that of the proposal that is written, in this term. A term ``succeeds``
    another one from a ``source``: the copy that is gone on with, or None for the owner's own.
    """

    term: int
    owner: tuple[int, int]  # index and incarnation
    eligible: frozenset[CopyName]
    number: int = 0
    target: CopyName | None = None
    source: CopyName | None = None
    succeeds: int = 0
    is_move: bool = False

    @property
    def age(self) -> tuple[int, int]:
        """Return what the newest record of a group has most of."""
        return self.term, self.number


class Pserver:
    """A server process with its disk; ``incarnation`` grows with each start."""

    def __init__(self, index: int, disks: dict[int, DiskCopy]) -> None:
        self.index = index
        self.up = True
        self.incarnation = 1
        self.copies: dict[int, MemoryCopy] = {}
        self.read: dict[int, Ownership] = {}  # what it has read last of the registry
        self.disks = disks  # the newest log of each group; all pservers may share a folder
        self.disk_full = False

    def is_up_as(self, incarnation: int) -> bool:
        """Return whether this incarnation of the process runs."""
        return self.up and self.incarnation == incarnation


def names_memory(names: Iterable[CopyName], index: int) -> bool:
    """Return whether the memory of a pserver is among copies."""
    return any(name.medium == "memory" and name.pserver == index for name in names)
