"""Words of the protocol: modes, commands and messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

GROUPS = (0, 1)
WORKERS = 3
PSERVERS = 4
ROWS = 10  # ids of the whole table; a row belongs to group ``row % 2``
KEPT_STEPS = 2  # how many undurable steps a sync worker may have
STEPS = 7  # of each worker
OUTBOX_ENTRIES = 6
LEAD = 2  # steps by which a worker in async may lead the slowest other
IN_FLIGHT = 3
FIRST_ASSIGNED = 1000
MODULUS = (1 << 61) - 1


class Mode(StrEnum):
    """How workers train, and what of recovery differs.

    In ``GEO`` workers name what they received from a part that isn't durable; in ``GEO_ROWS``
    every row is sent again after a new term. In ``SHRINK`` nobody takes a dead worker's place.
    """

    ASYNC = "async"
    SYNC = "sync"
    SHRINK = "shrink"
    GEO = "geo"
    GEO_ROWS = "geo_rows"
    LOCALSGD = "localsgd"


SYNCHRONOUS = {Mode.SYNC, Mode.SHRINK}


class Durability(StrEnum):
    """Which copies of a group count as durable."""

    DISK = "disk"
    REPLICA = "replica"
    BOTH = "both"


class Kind(StrEnum):
    """What a command or a request asks for."""

    ASSIGN = "assign"
    PUSH = "push"
    STEP = "step"
    EXCHANGE = "exchange"
    RESUME = "resume"
    LISTEN = "listen"
    TERM = "term"
    JOIN = "join"
    PULL = "pull"
    BEGIN = "begin"
    LEAVE = "leave"
    VOID = "void"
    FENCE = "fence"
    LOSE = "lose"
    KNOW = "know"
    END = "end"


class CopyName(NamedTuple):
    """A copy that may become the owner; a name is used for one copy, and never again.

    A disk outlives processes: its ``incarnation`` is the term that its log was begun in.
    """

    medium: Literal["disk", "memory"]
    pserver: int
    incarnation: int
    serial: int = 0


class Acked(NamedTuple):
    """The newest reply of a group that a GEO worker has taken in."""

    term: int | None
    batch: int


NOTHING_ACKED = Acked(None, 0)


@dataclass(frozen=True)
class Part:
    """What one group receives of a change.

    In async it finishes the steps from ``first`` to ``step``. In a pull, where workers may be
    lost, ``step`` is how many parts of its worker all groups have.
    """

    deltas: Mapping[int, int] = field(default_factory=dict)
    gradient: int = 0
    heard: tuple[int, ...] = ()
    first: int = 0
    step: int = -1


EMPTY = Part()


class Command(NamedTuple):
    """What changes the state of a group; ``term`` is that of a ``Kind.TERM``."""

    kind: Kind
    rank: int = -1
    incarnation: int = 0
    sequence: int | None = None
    part: Part = EMPTY
    acked: Acked = NOTHING_ACKED
    term: int = 0


@dataclass(frozen=True)
class Reply:
    """Values of rows: in GEO those that a worker hasn't received, as far as they fit."""

    rows: Mapping[int, int]
    batch: Acked = NOTHING_ACKED
    more: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker asks of one group.

    A pull names its step; ``expected``, for the checks, are the sequences that it must see.
    """

    group: int
    to: int
    term: int
    rank: int
    incarnation: int
    kind: Kind
    sequence: int | None = None
    step: int = 0
    expected: frozenset[int] = frozenset()
    part: Part = EMPTY
    acked: Acked = NOTHING_ACKED


Error = Literal["", "moved", "unknown", "refused", "disk full"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an answer says beside how far the worker's changes are durable."""

    error: Error = ""
    next_step: int = 0
    begun: int = 0  # the last term that began with a state that may be an older one
    value: int = 0
    unseen: frozenset[int] = frozenset()
    reply: Reply | None = None


@dataclass(frozen=True)
class Progress:
    """How far a group is; ``durable`` is the worker's highest durable sequence."""

    position: int = 0
    durable_position: int = -1
    durable: int = 0


@dataclass(frozen=True)
class Answer:
    """What a group answers to a request."""

    request: Request
    term: int
    outcome: Outcome
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Append:
    """A part of an owner's log, to one follower.

    It fits behind the log of any of the owner's terms from ``since`` on: nothing was lost.
    """

    group: int
    origin: int
    to: CopyName
    term: int
    since: int
    start: int
    commands: tuple[Command, ...]


@dataclass(frozen=True, kw_only=True)
class Appended:
    """How far a follower is."""

    group: int
    origin: CopyName
    to: int
    term: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Propose:
    """An owner asks the coordinator to name these copies as eligible, and no others."""

    group: int
    term: int
    number: int
    names: frozenset[CopyName]


@dataclass(frozen=True, kw_only=True)
class Written:
    """The coordinator has written what was proposed."""

    group: int
    term: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Fence:
    """A follower asks the owner to execute nothing more, or with ``undo`` to go on."""

    group: int
    to: int
    origin: CopyName
    term: int
    attempt: int
    undo: bool = False


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """An owner has executed its last command for an attempt."""

    group: int
    to: CopyName
    term: int
    attempt: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Succeed:
    """A process asks the coordinator for the next term, as the owner or as the next one."""

    group: int
    process: tuple[int, int]
    succeeds: int


@dataclass(frozen=True, kw_only=True)
class CutOrder:
    """Asks an owner to hold changes; with ``limits``, to take an image when it has them all."""

    group: int
    to: int
    term: int
    number: int
    limits: Mapping[int, int] | None


Message = (
    Request
    | Answer
    | Append
    | Appended
    | Propose
    | Written
    | Fence
    | Fenced
    | Succeed
    | CutOrder
)


def first_value(row: int) -> int:
    """Return a row's first value: a function of its id, so that creations may be lost."""
    return row * 7


def mix(*parts: int) -> int:
    """Return a number that depends on all parts and their order."""
    total = 17
    for part in parts:
        total = (total * 1000003 + part + 12345) % MODULUS
    return total


def rows_of(group: int) -> list[int]:
    """Return the rows that a group holds."""
    return [row for row in range(ROWS) if row % len(GROUPS) == group]
