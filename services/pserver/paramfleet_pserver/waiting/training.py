"""A training for those who wait for it: the state machine, and requests parked beside it."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.machine import Machine, Outcome
from paramfleet_pserver.commands.modes import ServerMode
from paramfleet_pserver.commands.records import (
    Announce,
    Announced,
    Command,
    Contribute,
    Fence,
    Join,
    Leave,
    Lose,
    Retire,
)
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.core.staleness import Release
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.tables.capacity import Claims
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.waiting.stepping import SyncWaits, Waits
from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import TurnTimeoutError
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Training"]


class Training:
    """A job between its first declaration and its end.

    Args:
        machine: Its state.
        clock: By whose time deadlines are meant.
        journal: Takes each command that is executed; None keeps none.
        check: Passes while commands may be executed here; None lets them always be.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        clock: Clock,
        journal: Journal | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.machine = machine
        self.journal = journal
        self._check = check
        self._turns: Parking[tuple[Rank, Step]] = Parking(clock=clock)
        self._losses: dict[Rank, float] = {}
        mode = self.machine.mode
        self.waits = Waits(machine.terms.mode)
        """What waits for steps."""
        if isinstance(mode, StepApplier):
            self.waits = SyncWaits(mode, clock=clock)

    @property
    def terms(self) -> Terms:
        """Return what was declared."""
        return self.machine.terms

    @property
    def identities(self) -> IdentityWindow:
        """Return which changes were taken, to be read alone."""
        return self.machine.identities

    @property
    def mode(self) -> ServerMode:
        """Return what the mode makes of it."""
        return self.machine.mode

    @property
    def num_members(self) -> int:
        """Return how many workers take part now."""
        return self.machine.num_members

    def check_rank(self, rank: Rank) -> None:
        """Refuse a worker that the job can't have. Raises as ``Machine.check_rank`` does."""
        self.machine.check_rank(rank)

    def execute(
        self,
        command: Command,
        *,
        claims: Claims | None = None,
        reads: list[Job] | None = None,
        alone: bool = False,
    ) -> Outcome:
        """Execute a command as ``Machine.execute`` does, and wake who waited for it.

        Raises:
            UnavailableError: if the disk doesn't take it, where there is a journal, or another
                process is about to own this; nothing is changed. See ``Journal.encoded``.
        """
        journal, body = self.journal, b""
        if journal is not None:
            try:
                if self._check is not None:
                    self._check()
                body = journal.encoded(command)
            except BaseException:
                if claims is not None:
                    claims.release()
                raise
            failpoint("before_apply")
        outcome = self.machine.execute(command, claims=claims, reads=reads, alone=alone)
        if journal is not None:
            failpoint("after_apply_before_log")
            journal.note(command, body, outcome)
        if isinstance(command, Contribute | Leave | Retire):
            self.waits.settle()
        if outcome.is_gone and isinstance(command, Leave | Lose | Join):
            self._losses.pop(command.rank, None)
        if outcome.released:
            self._wake(outcome.released)
        return outcome

    def fence(self, rank: Rank, incarnation: int) -> None:
        """Admit a worker's incarnation.

        Raises:
            FencedError: if a newer one is known.
        """
        if self.identities.incarnation(rank) != incarnation:
            self.execute(Fence(rank, incarnation))

    def is_latest(self, rank: Rank, incarnation: int | None) -> bool:
        """Return whether no newer incarnation of a worker is known; False for None."""
        return incarnation is not None and self.identities.incarnation(rank) == incarnation

    async def announce(self, news: Iterable[Announce | Announced]) -> None:
        """Let rows wait for workers, some at a time: others go on between them."""
        for each in news:
            await asyncio.shield(self.execute(each).applied)

    def note_loss(self, rank: Rank, loss: float | None) -> list[float]:
        """Note what a worker says of its loss; return what the others said last."""
        if loss is not None:
            self._losses[rank] = loss
        return [said for other, said in self._losses.items() if other != rank]

    def slowest_but(self, rank: Rank) -> Step | None:
        """Return the least steps committed by any other worker; None when alone."""
        return self.machine.gate.slowest_but(rank)

    async def wait_turn(self, rank: Rank, step: Step, *, deadline: float | None) -> None:
        """Wait until a worker may begin a step.

        Raises:
            UnknownWorkerError: if the worker left or never was one.
            TurnTimeoutError: if the deadline comes first.
        """
        gate = self.machine.gate
        if gate.begin(rank, step):
            return
        try:
            late = partial(self._late, rank, step)
            await self._turns.wait((rank, step), deadline=deadline, late=late)
        finally:
            if (rank, step) not in self._turns.awaited():
                gate.withdraw(rank, step)

    def fail(self, error: FleetError) -> None:
        """Fail every request that waits, and all that will."""
        self._turns.fail(error)
        self.waits.fail(error)

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        committed = self.machine.gate.committed()
        return {
            "mode": self.terms.mode,
            "max_staleness": self.machine.max_staleness,
            "on_worker_loss": self.terms.on_worker_loss,
            "members": [{"rank": rank, "steps": committed[rank]} for rank in sorted(committed)],
            "lives": [
                [rank, life]
                for rank, life in sorted(self.machine.lives.items())
                if rank in committed
            ],
            "parked": self.machine.gate.statistics().parked,
            **self.waits.facts(),
        }

    def _wake(self, releases: tuple[Release, ...]) -> None:
        self._turns.wake([(release.rank, release.step) for release in releases])

    def _late(self, rank: Rank, step: Step, waited_s: float) -> FleetError:
        slowest = self.machine.gate.slowest_but(rank)
        return TurnTimeoutError(rank=rank, step=step, slowest=slowest or 0, waited_s=waited_s)
