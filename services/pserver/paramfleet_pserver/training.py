"""What the workers agreed on at their first ``declare``, and how far each has come."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.core.pacing import AsyncRate
from paramfleet_pserver.core.staleness import Release, StalenessGate
from paramfleet_pserver.geo import GeoExchange
from paramfleet_pserver.owners import Owners
from paramfleet_pserver.parking import Parking
from paramfleet_pserver.requests import DeclareRequest, Mode
from paramfleet_pserver.stepping import SyncSteps
from paramfleet_pserver.tablestore import TableStore
from paramfleet_shared.clock import Clock
from paramfleet_shared.errors import FleetError
from paramfleet_shared.ids import Rank, Step
from paramfleet_shared.served_errors import (
    ModeMismatchError,
    TurnTimeoutError,
    UnknownWorkerError,
)

__all__ = ["Terms", "Training"]

_COMMON_FIELDS = ("mode", "max_staleness", "async_rate", "sync_batch_norm")
_FIELDS = (*_COMMON_FIELDS, "worker_num")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What holds for the whole job."""

    mode: Mode
    worker_num: int
    max_staleness: int | None
    """Steps a worker may lead the slowest by; None for any number."""
    async_rate: AsyncRate = "full"
    """Whether async takes the whole rate at every update."""

    sync_batch_norm: bool
    """Whether each worker adds its batch statistics to those of all."""

    @classmethod
    def of(cls, request: DeclareRequest) -> "Terms":
        """Return what a worker declares."""
        return cls(
            mode=request.mode,
            worker_num=request.worker_num,
            max_staleness=request.max_staleness,
            sync_batch_norm=request.sync_batch_norm,
            async_rate=request.async_rate,
        )

    def check_same(self, got: "Terms", *, elastic: bool) -> None:
        """Compare with what another worker declares.

        Args:
            got: That.
            elastic: Whether each worker may know of another number of them.

        Raises:
            ModeMismatchError: if a field differs; it names the first.
        """
        for field in _COMMON_FIELDS if elastic else _FIELDS:
            have_value, got_value = getattr(self, field), getattr(got, field)
            if have_value != got_value:
                raise ModeMismatchError(field=field, have=have_value, got=got_value)


class Training:
    """The state of a job between its first declaration and its end.

    All workers take part from the start; in an elastic job each from its ``join`` on.

    Args:
        terms: What was declared.
        elastic: Whether workers come and go.
        store: The tables.
        owners: Who works on them.
        clock: By whose time deadlines are meant.
    """

    def __init__(
        self, terms: Terms, *, elastic: bool, store: TableStore, owners: Owners, clock: Clock
    ) -> None:
        self.terms = terms
        self._elastic = elastic
        self._lives: dict[Rank, int] = {}
        num_workers = 0 if elastic else terms.worker_num
        self.max_staleness = terms.max_staleness
        """What holds now; an operator may have changed what was declared."""
        self.identities = IdentityWindow()
        lead = None if terms.mode == "sync" else terms.max_staleness  # sync has its own barrier
        self._gate = StalenessGate(max_lead_steps=lead)
        self._turns: Parking[tuple[Rank, Step]] = Parking(clock=clock)
        self._losses: dict[Rank, float] = {}
        for rank in range(num_workers):
            self._gate.join(Rank(rank))
        self.steps: SyncSteps | None = None
        self.geo: GeoExchange | None = None
        if terms.mode == "sync":
            self.steps = SyncSteps(
                num_workers=terms.worker_num, store=store, owners=owners, clock=clock
            )
        elif terms.mode in {"geo", "localsgd"}:
            self.geo = GeoExchange(num_workers=num_workers, store=store, owners=owners)

    def check_rank(self, rank: Rank) -> None:
        """Refuse a worker that the job can't have.

        Raises:
            UnknownWorkerError: naming it.
        """
        unknown = rank not in self._lives if self._elastic else rank >= self.terms.worker_num
        if unknown:
            raise UnknownWorkerError(rank=rank)

    def join(self, rank: Rank, incarnation: int) -> Step:
        """Take a worker in that declares, if it isn't yet; its former self goes.

        Returns:
            The steps it counts as having taken: as many as the slowest.

        Raises:
            FencedError: if a newer incarnation of it is known.
        """
        self.identities.fence(rank, incarnation)
        if not self._elastic:
            return Step(0)
        if self._lives.get(rank) != incarnation:
            self._take_out(rank)
            self._lives[rank] = incarnation
            if self.geo is not None:
                self.geo.join(rank)
        return self._gate.join(rank)

    def lose(self, rank: Rank, incarnation: int) -> bool:
        """Go on without a worker: it is waited for no more, and what it sends is refused.

        Returns:
            False if nothing changes: that was known, or a newer incarnation is at work.
        """
        if self.identities.incarnation(rank) > incarnation:
            return False
        self.identities.fence(rank, incarnation + 1)
        self._take_out(rank)
        return True

    def check_commit(self, rank: Rank, step: Step) -> None:
        """Refuse a step that can't be committed, and change nothing."""
        self._gate.check(rank, step)

    def commit(self, rank: Rank, step: Step) -> None:
        """Note that a worker has finished a step; a worker that left is no error."""
        if rank in self._gate.committed():
            self._wake(self._gate.commit(rank, step))

    @property
    def num_members(self) -> int:
        """Return how many workers take part now."""
        return len(self._gate.committed())

    def hear_loss(self, rank: Rank, loss: float | None) -> list[float]:
        """Note what a worker says of its loss; return what the others said last."""
        if loss is not None:
            self._losses[rank] = loss
        return [said for other, said in self._losses.items() if other != rank]

    def slowest_but(self, rank: Rank) -> Step | None:
        """Return the least steps committed by any other worker; None when alone."""
        return self._gate.slowest_but(rank)

    async def wait_turn(self, rank: Rank, step: Step, *, deadline: float | None) -> None:
        """Wait until a worker may begin a step.

        Raises:
            UnknownWorkerError: if the worker left or never was one.
            TurnTimeoutError: if the deadline comes first.
        """
        if self._gate.begin(rank, step):
            return
        try:
            late = partial(self._late, rank, step)
            await self._turns.wait((rank, step), deadline=deadline, late=late)
        finally:
            if (rank, step) not in self._turns.awaited():
                self._gate.withdraw(rank, step)

    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after.

        Raises:
            NotAMemberError: if the rank isn't one of the job's.
        """
        if self.steps is not None:
            self.steps.leave(rank, step)
        self._take_out(rank)

    def adjust(self, *, max_staleness: int | None) -> None:
        """Allow another lead over the slowest, in async, from now on."""
        if self.terms.mode == "async" and max_staleness != self.max_staleness:
            self.max_staleness = max_staleness
            self._wake(self._gate.limit(max_staleness))

    def fail(self, error: FleetError) -> None:
        """Fail every request that waits, and all that will."""
        self._turns.fail(error)
        if self.steps is not None:
            self.steps.fail(error)

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        committed = self._gate.committed()
        return {
            "mode": self.terms.mode,
            "max_staleness": self.max_staleness,
            "members": [{"rank": rank, "steps": committed[rank]} for rank in sorted(committed)],
            "parked": self._gate.statistics().parked,
            "waiting_for": list(self.steps.missing()) if self.steps is not None else [],
            "waiting_pulls": self.steps.num_waiting() if self.steps is not None else 0,
            "waiting_sums": self.steps.num_sums() if self.steps is not None else 0,
        }

    def _take_out(self, rank: Rank) -> None:
        if self.geo is not None:
            self.geo.leave(rank)
        self._losses.pop(rank, None)
        self._wake(self._gate.leave(rank))

    def _wake(self, releases: tuple[Release, ...]) -> None:
        self._turns.wake([(release.rank, release.step) for release in releases])

    def _late(self, rank: Rank, step: Step, waited_s: float) -> FleetError:
        slowest = self._gate.slowest_but(rank)
        return TurnTimeoutError(rank=rank, step=step, slowest=slowest or 0, waited_s=waited_s)
