"""What changes a pserver's training: each change is a value, and bytes.

A command holds all that decides its outcome, beside the state that it is applied to: two
servers in the same state that execute the same commands in the same order come to the same
state. So it names no cache of the server that took the request: ids that a request names by an
earlier pull, by numbers or by another part are written out, and numbers that came ahead in
pieces are in it. Numbers stay as they travelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paramfleet_pserver.requests.checked import ExchangeRequest, PushRequest
from paramfleet_pserver.requests.dense_requests import AssignRequest
from paramfleet_pserver.requests.pass_requests import PrepareRequest
from paramfleet_pserver.requests.row_requests import (
    DiscountRequest,
    RemoveRequest,
    WriteRequest,
)
from paramfleet_pserver.tables.table import SparseTable, Table
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.ids import Rank, Step

__all__ = [
    "AbortPass",
    "Announce",
    "Announced",
    "Assign",
    "Begin",
    "BeginTerm",
    "Command",
    "CommitPass",
    "Confirm",
    "Contribute",
    "Create",
    "Discount",
    "Exchange",
    "Fence",
    "Join",
    "Leave",
    "Limit",
    "Load",
    "Lose",
    "Make",
    "Origin",
    "PassCommand",
    "Prepare",
    "Remove",
    "Retire",
    "Update",
    "Void",
    "WriteRows",
]


@dataclass(frozen=True, slots=True)
class Create:
    """A pull makes rows of those ids that are unknown."""

    new: tuple[tuple[SparseTable, RowIds], ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Rows are removed; who names one later creates it anew."""

    remove: RemoveRequest


@dataclass(frozen=True, slots=True)
class Discount:
    """What an export has of the ``delta_score`` of rows is subtracted."""

    discount: DiscountRequest


@dataclass(frozen=True, slots=True)
class WriteRows:
    """A worker gives rows values; their optimizer states stay, and unknown ids get rows."""

    write: WriteRequest


@dataclass(frozen=True, slots=True)
class Update:
    """A push of async is applied."""

    push: PushRequest


@dataclass(frozen=True, slots=True)
class Contribute:
    """A push of sync is kept until its step is whole."""

    push: PushRequest


@dataclass(frozen=True, slots=True)
class Exchange:
    """Differences are added, and what the worker is sent in return is taken."""

    exchange: ExchangeRequest
    """Its loss isn't part of the command: it changes nothing."""


@dataclass(frozen=True, slots=True)
class Void:
    """A worker gives up a change that was refused: it is taken, without any effect."""

    identity: ChangeIdentity


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker of async that came late counts as having taken so many steps.

    Servers may have counted it from different ones, as it joined: it begins with the most of
    them, and sends that to all.
    """

    identity: ChangeIdentity
    step: Step


@dataclass(frozen=True, slots=True)
class Assign:
    """A worker gives a dense table's values."""

    assign: AssignRequest


@dataclass(frozen=True, slots=True)
class BeginTerm:
    """A server goes on from a state on its disk, maybe an older one than workers have seen.

    Numbers that replies had are given to none again, and every row waits for every worker once
    more: what a worker received may be lost here, and come again by another's change.
    """

    term: int
    """Higher than the one before."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A worker's newer incarnation is known; what its former self sends is refused."""

    rank: Rank
    incarnation: int


@dataclass(frozen=True, slots=True)
class Join:
    """A worker's incarnation takes part."""

    rank: Rank
    incarnation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker takes part in no step from ``step`` on."""

    rank: Rank
    incarnation: int
    step: Step


@dataclass(frozen=True, slots=True)
class Lose:
    """A worker's incarnation is gone."""

    rank: Rank
    incarnation: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """A worker's parts of all steps before ``step`` are with every server."""

    rank: Rank
    incarnation: int
    step: Step


@dataclass(frozen=True, slots=True)
class Retire:
    """A worker of sync that died takes part in no step from ``step`` on.

    Its parts of steps before are with every server, and count; others are dropped.
    """

    rank: Rank
    incarnation: int
    step: Step


@dataclass(frozen=True, slots=True)
class Limit:
    """An operator allows another lead over the slowest."""

    max_staleness: int | None


@dataclass(frozen=True, slots=True)
class Announce:
    """Rows of a block wait for a worker that joined, or, after a load, for all."""

    table: SparseTable
    block: int
    start: int
    stop: int
    """The rows in places [start, stop) of the block."""
    rank: Rank | None
    """None for every worker."""


@dataclass(frozen=True, slots=True)
class Announced:
    """All rows that there were wait: for a worker that joined, or those of a loaded table."""

    rank: Rank | None = None
    table: SparseTable | None = None


@dataclass(frozen=True, slots=True)
class Make:
    """Tables begin, without rows or with first values."""

    specs: tuple[TableSpec, ...]
    built: tuple[Table, ...] = ()
    """The same as they were made beforehand, which takes a while; not part of the bytes."""


class Origin(NamedTuple):
    """The checkpoint that rows were loaded from."""

    folder: str = ""
    """With its links resolved; empty for none."""
    digest: str = ""
    """SHA-256 of its manifest, as hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Load:
    """The rows and the age of tables are replaced by those of a checkpoint."""

    tables: tuple[Table, ...]
    """Nobody else changes them."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class Prepare:
    """A piece of a pass is kept until the pass is committed or aborted."""

    prepare: PrepareRequest

    @property
    def rank(self) -> Rank:
        """Return whose it is."""
        return self.prepare.piece.rank

    @property
    def incarnation(self) -> int:
        """Return which process of the worker sends it."""
        return self.prepare.piece.incarnation


@dataclass(frozen=True, slots=True)
class CommitPass:
    """What is prepared of a pass is written to the tables."""

    rank: Rank
    incarnation: int
    number: int
    pieces: Mapping[Rank, int] | None
    """How many each worker has prepared here; None for whatever is prepared and whole."""


@dataclass(frozen=True, slots=True)
class AbortPass:
    """What is prepared of a pass is dropped."""

    rank: Rank
    incarnation: int
    number: int


PassCommand = Prepare | CommitPass | AbortPass

Command = (
    Create
    | Remove
    | Discount
    | WriteRows
    | Update
    | Contribute
    | Exchange
    | Void
    | Assign
    | Begin
    | BeginTerm
    | Fence
    | Join
    | Leave
    | Lose
    | Limit
    | Confirm
    | Retire
    | Load
    | Make
    | Announce
    | Announced
    | Prepare
    | CommitPass
    | AbortPass
)
