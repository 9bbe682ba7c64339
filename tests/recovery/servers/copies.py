"""A group's copies: in the memory of a pserver, and on its disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.recovery.groups.state import GroupState
from tests.recovery.protocol import EMPTY, Command, Reply


class CopyName(NamedTuple):
    """A copy that may become the owner; a disk outlives incarnations, its number is 0."""

    medium: Literal["disk", "memory"]
    pserver: int
    incarnation: int = 0


class DiskCopy:
    """A snapshot, and the log behind it; ``synced`` commands of the log survive a crash."""

    def __init__(self, state: GroupState) -> None:
        self.snapshot = state.copied()
        self.log: list[Command] = []
        self.synced = 0

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
    """What an owner knows of a copy that follows its log."""

    position: int
    incarnation: int


@dataclass
class Hold:
    """Changes wait for a cut; with ``limits``, those up to them are let through."""

    limits: Mapping[int, int] | None = None


class MemoryCopy:
    """A group's copy in the memory of a pserver: owner, follower, or an owner no more."""

    def __init__(
        self,
        state: GroupState,
        role: Literal["owner", "follower", "stale"],
        term: int,
    ) -> None:
        self.state = state
        self.role = role
        self.log: list[Command] = []  # what may still be sent to followers, or written
        self.log_start = state.position
        self.positions: dict[tuple[int, int], int] = {}  # of changes in the log
        self.begin_term(term)

    def begin_term(self, term: int) -> None:
        """Begin as the owner of a term, without any copies that count as durable."""
        self.term = term
        self.first_position = self.state.position
        self.followers: dict[int, Follower] = {}
        self.counted: frozenset[CopyName] = frozenset()
        self.reports = False  # whether anything may be reported durable
        self.hold: Hold | None = None
        self.last_cut = 0
        self.fenced = False  # a handover is about to switch
        self.successor: int | None = None

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
    """What the registry says of a group."""

    term: int
    owner: tuple[int, int]  # index and incarnation
    eligible: frozenset[CopyName]


class Pserver:
    """A server process with its disk; ``incarnation`` grows with each start."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.up = True
        self.incarnation = 1
        self.copies: dict[int, MemoryCopy] = {}
        self.disks: dict[int, DiskCopy] = {}
        self.disk_full = False

    def is_up_as(self, incarnation: int) -> bool:
        """Return whether this incarnation of the process runs."""
        return self.up and self.incarnation == incarnation


def names_memory(names: Iterable[CopyName], index: int) -> bool:
    """Return whether the memory of a pserver is among copies."""
    return any(name.medium == "memory" and name.pserver == index for name in names)
