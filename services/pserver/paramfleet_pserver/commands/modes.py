"""What a mode makes of a pserver's training: one object, behind one class."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import ClassVar

from paramfleet_pserver.commands.records import Announce, Announced
from paramfleet_pserver.commands.removing import remove_rows
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.requests.row_requests import RemoveRequest, WriteRequest
from paramfleet_pserver.tables.old_values import StepBefore
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.served import TablesDamagedError
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["EVERY_MODE", "AsyncMode", "ServerMode"]

EVERY_MODE = frozenset(
    {
        "pull", "stage", "survey", "prefetch", "remove", "discount", "write", "void",
        "assign", "leave",
        "wait_turn", "hold", "answer", "join", "settle", "progress",
    }
)  # fmt: skip
"""Operations on a training that all modes have."""


class ServerMode:
    """What state machine and operations ask of a mode, which defines what it has of it."""

    name: ClassVar[Mode]
    operations: ClassVar[frozenset[str]]
    """Of the data plane, on a training."""
    in_step = False
    """Whether pushes are kept until every worker's is there."""
    takes_all = False
    """Whether every worker is needed: none can come or go, and no lead is limited."""
    replaceable = False
    """Whether nothing is lost with a worker that is alone and dies, as its successor ends or
    repeats what it left."""
    limit_changes = False
    """Whether an operator may change ``max_staleness``."""
    states_apart = False
    """Whether each worker has optimizer states of its own."""

    damage: TablesDamagedError | None = None
    """What was applied in part, if anything was: nothing is read or changed any more."""

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        """Begin with so many workers. Nothing is kept for them, unless a mode does."""

    @property
    def applied(self) -> int | None:
        """Return the steps of sync that are applied; None in other modes."""
        return None

    @property
    def is_applying(self) -> bool:
        """Return whether a step is on its way."""
        return bool(self.under_way)

    @property
    def under_way(self) -> set[asyncio.Future[None]]:
        """Return the ends of steps that are on their way."""
        return set()

    def note_damage(self, step: Step, error: BaseException) -> TablesDamagedError:
        """Note that a change of ``step`` failed in its middle, and return what says so."""
        self.damage = TablesDamagedError(step=step, reason=str(error) or repr(error))
        return self.damage

    @classmethod
    def check_rule(cls, spec: TableSpec) -> None:
        """Pass if a table can be served.

        Raises:
            GeoRuleError: if workers run its optimizer, and its own is another than ``sum``.
        """

    def join(self, rank: Rank) -> None:
        """Count a worker in, in an elastic job."""

    def before(self, version: int | None) -> Sequence[StepBefore]:
        """Return what takes values back to a version: nothing, in a mode without versions."""
        del version
        return ()

    def begins(self, rank: Rank) -> Step | None:
        """Return the step that a worker begins with which is started again; None for any."""
        del rank
        return None

    def leave(self, rank: Rank, step: Step) -> None:
        """Wait for a worker no more, from a step on.

        Raises:
            NotAMemberError: if the rank isn't one of the job's.
        """

    def forget(self, rank: Rank) -> None:
        """Keep nothing for a worker any more."""

    def begin_term(self, term: int) -> None:
        """Go on from an older state than workers may have seen."""

    def check_rows(self, change: RemoveRequest | WriteRequest) -> None:
        """Raise if rows may not be removed or written now.

        A mode without common steps permits it at any time.

        Raises:
            StepBegunError: if a worker has pushed the step in progress.
            PassPreparedError: if a pass is being written back.
            FleetError: as ``StepReservoir.check_in_progress``.
        """

    def check_write(self, operation: str) -> None:
        """Pass if tables may be written to past their optimizers now.

        Raises:
            PassPreparedError: if a pass is being written back.
        """

    def note_write(self, table: Table, by: str) -> None:
        """Note that a table was written to past its optimizer, and by what."""

    def remove(self, remove: RemoveRequest, counts: list[int]) -> list[Job]:
        """Return what removes rows, and adds to ``counts`` how many."""
        return remove.table.remove_jobs(remove.rows, remove_rows, counts)

    def write(self, write: WriteRequest) -> list[Job]:
        """Return the jobs that write rows."""
        return write.table.write_jobs(write.content)

    def news_of_load(self) -> Iterator[Announce | Announced]:
        """Yield what announces every row of a checkpoint to every worker."""
        return iter(())

    def news_of_all(self, rank: Rank) -> Iterator[Announce | Announced]:
        """Yield what announces every row that there is to a worker that joined."""
        del rank
        return iter(())


class AsyncMode(ServerMode):
    """Every push is applied as it comes; nothing is kept beside the tables."""

    name: ClassVar[Mode] = "async"
    operations = EVERY_MODE | {"push", "begin"}
    limit_changes = True
