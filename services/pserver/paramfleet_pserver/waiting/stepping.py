"""Requests that wait for a step of synchronous training: pulls, and sums over its workers.

A push is answered when it is kept. When its step is applied the pulls that waited for it go on.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from paramfleet_pserver.commands.applying import StepApplier, StepListener
from paramfleet_pserver.core.sums.norms import NormPart, NormUse, StepNorms, merged_power
from paramfleet_pserver.core.sums.totals import KeptTotal, StepTotals
from paramfleet_pserver.requests.total_requests import NormRequest, TotalRequest
from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.errors import FleetError, UnavailableError
from paramfleet_shared.errors.served import (
    NormFailedError,
    NormNotSharedError,
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

log = logging.getLogger(__name__)

_COMPUTED_HERE_BYTES = 64 << 10
"""Gradients that are merged by the event loop itself; more by a thread beside it."""


class Total(NamedTuple):
    """A sum over the workers of a step."""

    values: "NDArray[np.float64]"
    """[n]"""
    workers: int
    """Who take part in the step: more than there are parts, if one has pushed it before."""


class Norm(NamedTuple):
    """A norm of a step's merged gradient."""

    value: float
    """A sum of powers, or the largest size, of what this server holds; or the whole norm."""
    is_whole: bool
    """Whether it is the norm of the whole gradient, which a worker has named with its push."""


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

    async def norm(self, asked: NormRequest, deadline: float | None) -> "Norm":
        """Add a worker's part to a norm, and return it when nobody's is missing.

        Raises:
            OperationModeError: in a mode whose workers don't take a step together.
        """
        del asked, deadline
        raise OperationModeError(operation="norm", mode=self._mode)

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
        self._norms = StepNorms()
        self._awaiting_norms: Parking[NormUse] = Parking(clock=clock)
        self._computing: set[asyncio.Task[None]] = set()
        self._awaiting_steps: Parking[tuple[Rank, Step]] = Parking(clock=clock)
        """Workers that wait elsewhere, and the step that they would take next."""
        steps.listener = self

    @override
    def step_begun(self) -> None:
        self._awaiting_totals.wake(self._totals.settle(()))
        self._totals.clear()  # all have pushed the step, so all had its sums
        self._norms.clear()  # as above
        self._awaiting_norms.wake(self._awaiting_norms.awaited())

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
        self._settle_norms()
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
        return is_next and (self._totals.lacks(rank) or self._norms.lacks(rank))

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
    async def norm(self, asked: NormRequest, deadline: float | None) -> Norm:
        """Add a worker's part to a norm, and return it when nobody's is missing.

        Missing are the parts of those who take part in the step and have not pushed it. A
        worker that has pushed it, and was answered the norm, names it with its push: a worker
        that is started again, or a server that lost the parts, has it from there.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
            StepPassedError: if the worker has pushed the step, or it was applied.
            StepTooEarlyError: if an earlier step is in progress.
            NormMismatchError: if another worker clips other gradients.
            NormNotSharedError: if a worker has pushed the step without this norm.
            NormFailedError: if it couldn't be computed.
            TotalIncompleteError: if the deadline comes first.
        """
        use, norms = asked.use, self._norms
        if (named := self._steps.norm_of(asked.step, use.number)) is not None:
            return Norm(named, is_whole=True)
        await self.wait(asked.step, deadline=deadline)  # a server that went on from its disk
        self._reservoir.check_in_progress(asked.rank, asked.step)
        norms.add(use, asked.rank, asked.part, asked.order)
        self.settle()
        while (found := norms.of(use)) is None:
            if (named := self._steps.norm_of(asked.step, use.number)) is not None:
                return Norm(named, is_whole=True)
            self._check_shared(asked)
            late = partial(self._norm_late, asked)
            await self._awaiting_norms.wait(use, deadline=deadline, late=late)
        return Norm(found, is_whole=False)

    def _check_shared(self, asked: NormRequest) -> None:
        """Raise if a worker has pushed the step with a batch, and without this norm.

        Raises:
            NormNotSharedError: naming it.
            StepPassedError: if the step was applied meanwhile.
        """
        self._reservoir.check_in_progress(asked.rank, asked.step)
        for rank, weight in sorted(self._reservoir.pushed_weights().items()):
            if weight > 0:
                raise NormNotSharedError(
                    rank=rank, step=asked.step, number=asked.use.number + 1
                )

    def _settle_norms(self) -> None:
        """Compute the norms that wait for nobody, and wake those that can't be any more."""
        awaited = self._reservoir.missing()
        has_pushed = any(self._reservoir.pushed_weights().values())
        for use in self._norms.open():
            if has_pushed:
                self._awaiting_norms.wake([use])
            elif not self._norms.missing(use, awaited):
                computing = self._compute(use, *self._norms.take(use))
                task = asyncio.get_running_loop().create_task(computing)
                self._computing.add(task)
                task.add_done_callback(self._computing.discard)

    async def _compute(
        self, use: NormUse, parts: Mapping[Rank, NormPart], order: float
    ) -> None:
        step = self._reservoir.next_step
        work = partial(merged_power, parts, order, sums=self._reservoir.sums)
        size = sum(part.values.nbytes for of in parts.values() for part in of.tables.values())
        found: float | FleetError
        try:
            found = work() if size < _COMPUTED_HERE_BYTES else await asyncio.to_thread(work)
        except Exception as error:  # all who wait for it are told
            log.exception("norm %d of step %d can't be computed", use.number + 1, step)
            reason = f"{type(error).__name__}: {error}"
            found = NormFailedError(step=step, number=use.number + 1, reason=reason)
        if self._reservoir.next_step == step:
            self._norms.note(use, found)
            self._awaiting_norms.wake([use])

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
        self._awaiting_norms.fail(error)
        self._awaiting_steps.fail(error)

    @override
    def facts(self) -> dict[str, Any]:
        return {
            "waiting_for": list(self._reservoir.missing()),
            "waiting_pulls": len(self._parking.awaited()),
            "waiting_sums": len(self._awaiting_totals.awaited()),
        }

    def _norm_late(self, asked: NormRequest, waited_s: float) -> FleetError:
        missing = self._norms.missing(asked.use, self._reservoir.missing())
        return TotalIncompleteError(
            name=f"clip_grad_norm_ #{asked.use.number + 1}",
            step=asked.step,
            missing=list[int](missing),
            waited_s=waited_s,
        )

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
