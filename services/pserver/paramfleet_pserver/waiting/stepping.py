"""Requests that wait for a step of synchronous training: pulls, and sums over its workers.

A push is answered when it is kept. When its step is applied the pulls that waited for it go on.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from paramfleet_pserver.commands.applying import StepApplier, StepListener
from paramfleet_pserver.core.totals import KeptTotal, StepTotals
from paramfleet_pserver.requests.total_requests import TotalRequest
from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.errors import FleetError, UnavailableError
from paramfleet_shared.errors.served import (
    NotAMemberError,
    OperationModeError,
    StepIncompleteError,
    TotalIncompleteError,
)
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.values.ids import Rank, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SyncWaits", "Total", "Waits"]


class Total(NamedTuple):
    """A sum over the workers of a step."""

    values: "NDArray[np.float64]"
    """[n]"""
    workers: int
    """Who take part in the step: more than there are parts, if one has pushed it before."""


class Waits:
    """What waits for steps in a mode that has none.

    Args:
        mode: Its name.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode

    async def total(self, part: TotalRequest, deadline: float | None) -> "Total":
        """Add a worker's part to a sum, and return it when nobody's is missing.

        Raises:
            OperationModeError: in a mode without sums.
        """
        del part, deadline
        raise OperationModeError(operation="total", mode=self._mode)

    async def await_step(self, rank: Rank, step: Step, *, deadline: float | None) -> bool:
        """Wait until other workers wait in a step for this one; return whether they do.

        Raises:
            OperationModeError: in a mode whose workers don't wait for each other.
        """
        del rank, step, deadline
        raise OperationModeError(operation="await_step", mode=self._mode)

    async def wait(self, version: int, *, deadline: float | None) -> float:
        """Wait until ``version`` steps are applied; return for how many seconds."""
        del version, deadline
        return 0.0

    def settle(self) -> None:
        """Add up the sums that wait for nobody any more."""

    def kept_totals(self) -> list[KeptTotal]:
        """Return the parts of sums that are here, and the sums of the step."""
        return []

    def restore_totals(self, kept: Iterable[KeptTotal]) -> None:
        """Go on with the sums that another server had.

        Raises:
            FleetError: if they can't be.
        """
        del kept

    def fail(self, error: FleetError) -> None:
        """Fail every request that waits, and all that will."""

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {"waiting_for": [], "waiting_pulls": 0, "waiting_sums": 0}


class SyncWaits(Waits, StepListener):
    """Who waits for steps of sync.

    Args:
        steps: Which are waited for.
        clock: By whose time deadlines are meant.
    """

    def __init__(self, steps: StepApplier, *, clock: Clock) -> None:
        super().__init__(steps.name)
        self._steps = steps
        self._reservoir = steps.reservoir
        self._clock = clock
        self._parking: Parking[int] = Parking(clock=clock)
        self._totals = StepTotals()
        self._awaiting_totals: Parking[str] = Parking(clock=clock)
        self._awaiting_steps: Parking[tuple[Rank, Step]] = Parking(clock=clock)
        """Workers that wait elsewhere, and the step that they would take next."""
        steps.listener = self

    @override
    def step_begun(self) -> None:
        self._awaiting_totals.wake(self._totals.settle(()))
        self._totals.clear()  # all have pushed the step, so all had its sums

    @override
    def step_applied(self, version: int) -> None:
        self._parking.wake([v for v in self._parking.awaited() if v <= version])

    @override
    def step_failed(self, error: FleetError) -> None:
        self._parking.fail(error)

    @override
    def settle(self) -> None:
        """Add up the sums that wait for nobody any more: a worker has pushed, or left."""
        self._awaiting_totals.wake(self._totals.settle(self._reservoir.missing()))
        self._awaiting_steps.wake(
            [each for each in self._awaiting_steps.awaited() if self._is_awaited(*each)]
        )

    def _is_awaited(self, rank: Rank, step: Step) -> bool:
        """Return whether others wait for a worker; also if its request is to be refused."""
        try:
            if self._reservoir.is_awaited(rank, step):
                return True
        except NotAMemberError:
            return True
        is_next = step == self._reservoir.next_step and not self._reservoir.holds(rank, step)
        return is_next and self._totals.lacks(rank)

    @override
    async def await_step(self, rank: Rank, step: Step, *, deadline: float | None) -> bool:
        """Wait until other workers wait in a step for this one; return whether they do.

        They have pushed the step, or ask for a sum over its workers.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
            UnavailableError: if that is how the job has failed.
        """
        if not self._is_awaited(rank, step):
            nothing = UnavailableError("no other worker came to the step in time")
            try:
                await self._awaiting_steps.wait(
                    (rank, step), deadline=deadline, late=lambda _: nothing
                )
            except UnavailableError as error:
                if error is not nothing:
                    raise
                return False
        self._reservoir.is_awaited(rank, step)  # or it has left meanwhile
        return self._is_awaited(rank, step)

    @override
    def kept_totals(self) -> list[KeptTotal]:
        return self._totals.kept()

    @override
    def restore_totals(self, kept: Iterable[KeptTotal]) -> None:
        self._totals.restore(kept)
        self.settle()

    @override
    async def total(self, part: TotalRequest, deadline: float | None) -> "Total":
        """Add a worker's part to a sum, and return it when nobody's is missing.

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
        self.settle()
        if not self._totals.is_whole(name):
            late = partial(self._total_late, part)
            await self._awaiting_totals.wait(name, deadline=deadline, late=late)
        return Total(self._totals.of(name), self._reservoir.num_members)

    @override
    async def wait(self, version: int, *, deadline: float | None) -> float:
        """Wait until ``version`` steps are applied; return for how many seconds.

        Raises:
            StepIncompleteError: if the deadline comes first.
        """
        if self._steps.version >= version:
            return 0.0
        began = self._clock.monotonic()
        late = partial(self._late, version)
        await self._parking.wait(version, deadline=deadline, late=late)
        return self._clock.monotonic() - began

    @override
    def fail(self, error: FleetError) -> None:
        """Fail every request that waits, and all that will."""
        self._parking.fail(error)
        self._awaiting_totals.fail(error)
        self._awaiting_steps.fail(error)

    @override
    def facts(self) -> dict[str, Any]:
        return {
            "waiting_for": list(self._reservoir.missing()),
            "waiting_pulls": len(self._parking.awaited()),
            "waiting_sums": len(self._awaiting_totals.awaited()),
        }

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
