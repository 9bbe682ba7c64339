"""Synchronous steps: pushes are kept until a step is whole, then applied as one update.

A push is answered when it is kept. The step's last push, or a leave, makes it whole:
its contributions go to the shards' owners in rank order, and when they have applied
it the version of every table grows by one and the pulls that waited for it go on.
Steps are applied one after the other.

Runs on the event loop's thread; only the owners' jobs leave it.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from paramfleet_pserver.capacity import Claims
from paramfleet_pserver.core.membership import StepMembers
from paramfleet_pserver.core.reservoir import CompleteStep, StepReservoir
from paramfleet_pserver.core.totals import StepTotals
from paramfleet_pserver.owners import Job, Owners, when_done
from paramfleet_pserver.parking import Parking
from paramfleet_pserver.requests import PushPart
from paramfleet_pserver.tablestore import TableStore
from paramfleet_pserver.total_requests import TotalRequest
from paramfleet_shared.clock import Clock
from paramfleet_shared.errors import FleetError
from paramfleet_shared.ids import Rank, Step
from paramfleet_shared.served_errors import (
    StepIncompleteError,
    TablesDamagedError,
    TotalIncompleteError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SyncSteps"]


class _Kept(NamedTuple):
    """A worker's push until its step is applied."""

    parts: tuple[PushPart, ...]
    claims: Claims
    """Room for the rows that it creates."""


class SyncSteps:
    """The step in progress of synchronous training.

    Args:
        num_workers: Workers of the job.
        store: The tables; every step counts for all of them.
        owners: Who applies.
        clock: By whose time deadlines are meant.
    """

    def __init__(
        self, *, num_workers: int, store: TableStore, owners: Owners, clock: Clock
    ) -> None:
        self._store = store
        self._owners = owners
        self._clock = clock
        self._reservoir: StepReservoir[_Kept] = StepReservoir(
            StepMembers(num_workers=num_workers)
        )
        self._parking: Parking[int] = Parking(clock=clock)
        self._totals = StepTotals()
        self._awaiting_totals: Parking[str] = Parking(clock=clock)
        self._applying = False
        self.version = 0
        """Steps applied."""

    def holds(self, rank: Rank, step: Step) -> bool:
        """Return whether a worker's push of a step was kept or applied."""
        return self._reservoir.holds(rank, step)

    def check(self, rank: Rank, step: Step, weight: float) -> None:
        """Refuse a push that ``keep`` would refuse, and change nothing."""
        self._reservoir.check(rank, step, weight)

    def keep(
        self,
        rank: Rank,
        step: Step,
        weight: float,
        parts: tuple[PushPart, ...],
        claims: Claims,
    ) -> None:
        """Keep a worker's push; if the step is whole now, begin to apply it.

        Args:
            rank: The worker.
            step: Of its push.
            weight: Of the push, in the step's mean.
            parts: What it pushes.
            claims: Room for the rows that it creates, held until the step is applied.
        """
        self._reservoir.add(rank, step, weight, _Kept(parts, claims))
        self._settle_totals()
        self._apply_next()

    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after."""
        self._reservoir.leave(rank, step)
        self._settle_totals()
        self._apply_next()

    async def total(self, part: TotalRequest, deadline: float | None) -> "NDArray[np.float64]":
        """Add a worker's part to a sum, and return it when nobody's is missing, float64 [n].

        Missing are the parts of those who take part in the step and have not pushed it: who
        has, or has left before, adds nothing more.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
            StepPassedError: if the worker has pushed the step, or it was applied.
            StepTooEarlyError: if an earlier step is in progress.
            TotalMismatchError: if another worker's part has another length.
            TotalsTooLargeError: if a step has more sums than are kept.
            TotalIncompleteError: if the deadline comes first.
        """
        name = part.name
        self._reservoir.check_in_progress(part.rank, part.step)
        self._totals.add(name, part.rank, part.values)
        self._settle_totals()
        if not self._totals.is_whole(name):
            late = partial(self._total_late, part)
            await self._awaiting_totals.wait(name, deadline=deadline, late=late)
        return self._totals.of(name)

    async def wait(self, version: int, *, deadline: float | None) -> float:
        """Wait until ``version`` steps are applied; return for how many seconds.

        Raises:
            StepIncompleteError: if the deadline comes first.
        """
        if self.version >= version:
            return 0.0
        began = self._clock.monotonic()
        late = partial(self._late, version)
        await self._parking.wait(version, deadline=deadline, late=late)
        return self._clock.monotonic() - began

    def fail(self, error: FleetError) -> None:
        """Fail every request that waits, and all that will."""
        self._parking.fail(error)
        self._awaiting_totals.fail(error)

    def missing(self) -> tuple[Rank, ...]:
        """Return the workers that the step in progress waits for."""
        return self._reservoir.missing()

    def num_waiting(self) -> int:
        """Return how many versions pulls wait for."""
        return len(self._parking.awaited())

    def num_sums(self) -> int:
        """Return for how many sums over the workers requests wait."""
        return len(self._awaiting_totals.awaited())

    def _apply_next(self) -> None:
        if self._applying:
            return
        complete = self._reservoir.take()
        if complete is None:
            return
        self._applying = True
        self._totals.clear()  # all have pushed the step, so all had its sums
        jobs = _jobs(complete, self._store)
        when_done(self._owners.start(jobs), partial(self._applied, complete))

    def _applied(self, complete: CompleteStep[_Kept], end: asyncio.Future[None]) -> None:
        self._applying = False
        step = complete.step
        for contribution in complete.contributions:
            contribution.payload.claims.release()
        error = end.exception()
        if error is not None:
            self._parking.fail(TablesDamagedError(step=step, reason=str(error)))
            return
        self.version = step + 1
        for table in self._store:
            table.version = self.version
        self._parking.wake([v for v in self._parking.awaited() if v <= self.version])
        self._apply_next()

    def _settle_totals(self) -> None:
        self._awaiting_totals.wake(self._totals.settle(self._reservoir.missing()))

    def _total_late(self, part: TotalRequest, waited_s: float) -> FleetError:
        return TotalIncompleteError(
            name=part.name,
            step=part.step,
            missing=list[int](self._totals.missing(part.name, self._reservoir.missing())),
            waited_s=waited_s,
        )

    def _late(self, version: int, waited_s: float) -> FleetError:
        return StepIncompleteError(
            version=version,
            step=self._reservoir.next_step,
            missing=list(self._reservoir.missing()),
            waited_s=waited_s,
        )


def _jobs(complete: CompleteStep[_Kept], store: TableStore) -> list[Job]:
    """Make a step one update of every table; the lowest rank's learning rate counts."""
    by_table: dict[str, list[tuple[PushPart, float]]] = {}
    for contribution in complete.contributions:
        for part in contribution.payload.parts:
            scaled = (part, contribution.scale)
            by_table.setdefault(part.table.spec.name, []).append(scaled)
    jobs: list[Job] = []
    for table in store:
        step = table.next_update()
        parts = by_table.get(table.spec.name, [])
        if parts:
            lr = parts[0][0].lr
            contents = [part.content._replace(scale=scale) for part, scale in parts]
            jobs += table.update_jobs(contents, lr=lr, step=step)
    return jobs
