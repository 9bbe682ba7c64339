"""Bounded staleness: which steps may begin now, and which must wait.

The gate holds one integer per worker, the steps it has committed, and keeps
the stale-synchronous-parallel rule (Ho et al., NIPS 2013, section 3): step
``s`` may begin only while ``s - slowest <= max_lead_steps``, where ``slowest``
is the least number of committed steps over the *other* members. A worker's own
pushes travel in the background, often several steps merged into one, so that
its own count may trail the step it begins, and grows by more than one. Several pushes
may be on their way, and come in another order: a step counts once all before it do.

Nothing here waits, logs, or knows the time. The caller reports facts; what the
methods return is what the caller must now do. One task owns a gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paramfleet_shared.errors.served import ParkedStepError, UnknownWorkerError
from paramfleet_shared.values.ids import Rank, Step

__all__ = [
    "Release",
    "StalenessGate",
    "StalenessStatistics",
]

MAX_AHEAD = 1024
"""Pushes of a worker that wait for one before them, more than are ever on their way; with more,
the gap is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A step that was parked may begin."""

    rank: Rank
    step: Step


@dataclass(frozen=True, kw_only=True, slots=True)
class StalenessStatistics:
    """What an operator may ask of a gate."""

    members: int
    parked: int
    slowest: Step | None
    """``None`` while there are no members."""
    fastest: Step | None
    """``None`` while there are no members."""


class StalenessGate:
    """Counts of committed steps, and admission to the next one.

    Invariant: no step was let through that led the slowest other member by more
    than ``max_lead_steps`` at that time.

    Args:
        max_lead_steps: Steps a worker may lead the slowest other member by; 0
            makes training bulk-synchronous; None never parks.
    """

    def __init__(self, *, max_lead_steps: int | None) -> None:
        assert max_lead_steps is None or max_lead_steps >= 0, "the caller validates this"
        self._max_lead_steps = max_lead_steps
        self._committed: dict[Rank, Step] = {}
        self._parked: dict[Rank, Step] = {}
        self._ahead: dict[Rank, dict[Step, Step]] = {}
        """Steps finished while some before them aren't: the first of each, and the end."""

    def join(self, rank: Rank) -> Step:
        """Admit a member; it starts level with the slowest.

        Joining twice is a no-op, so a caller may retry.

        Returns:
            The steps the worker counts as having committed.
        """
        return self._committed.setdefault(rank, self._slowest() or Step(0))

    def limit(self, max_lead_steps: int | None) -> tuple[Release, ...]:
        """Allow another lead from now on; None allows any.

        Returns:
            Steps that may begin because of it.
        """
        self._max_lead_steps = max_lead_steps
        return self._release()

    def leave(self, rank: Rank) -> tuple[Release, ...]:
        """Forget a member that left; leaving twice is a no-op.

        Returns:
            Steps that may begin because the slowest member moved on.
        """
        self._committed.pop(rank, None)
        self._parked.pop(rank, None)
        self._ahead.pop(rank, None)
        return self._release()

    def has(self, rank: Rank) -> bool:
        """Return whether a worker is a member."""
        return rank in self._committed

    def begin(self, rank: Rank, step: Step) -> bool:
        """Ask to begin a step; asking again is harmless.

        Returns:
            True if the step may run now; False if it is parked until a
            ``Release`` names it.

        Raises:
            UnknownWorkerError: if the worker is not a member.
        """
        self._expect(rank)
        if self._may_run(rank, step):
            self._parked.pop(rank, None)
            return True
        self._parked[rank] = step
        return False

    def withdraw(self, rank: Rank, step: Step) -> None:
        """Forget a parked step: its worker no longer waits for it."""
        if self._parked.get(rank) == step:
            del self._parked[rank]

    def check(self, rank: Rank, step: Step) -> None:
        """Refuse a commit that ``commit`` would refuse, and change nothing.

        Raises:
            UnknownWorkerError: if the worker is not a member.
            ParkedStepError: if ``step`` is still parked.
        """
        self._expect(rank)
        parked = self._parked.get(rank)
        if parked is not None and step >= parked:
            raise ParkedStepError(rank=rank, step=step)

    def commit(
        self, rank: Rank, step: Step, *, first: Step | None = None
    ) -> tuple[Release, ...]:
        """Record that a worker finished ``step`` and others before; may be repeated.

        Args:
            rank: The worker.
            step: The last one of them.
            first: The first one. They count once all before it are finished. None for all
                before ``step``.

        Returns:
            Steps that may begin because the slowest member moved on.
        """
        self.check(rank, step)
        done, end = self._committed[rank], Step(step + 1)
        if first is None or first <= done:
            self._committed[rank] = max(done, end)
        else:
            ahead = self._ahead.setdefault(rank, {})
            ahead[first] = max(ahead.get(first, end), end)
        self._absorb(rank)
        return self._release()

    def begin_at(self, rank: Rank, step: Step) -> tuple[Release, ...]:
        """Count a member as having committed all steps before ``step``, if it has fewer.

        Returns:
            Steps that may begin because of it.

        Raises:
            UnknownWorkerError: if the worker is not a member.
        """
        self._expect(rank)
        self._committed[rank] = max(self._committed[rank], step)
        self._absorb(rank)
        return self._release()

    def slowest_but(self, rank: Rank) -> Step | None:
        """Return the least steps committed by any other member; None when alone."""
        others = (steps for r, steps in self._committed.items() if r != rank)
        return min(others, default=None)

    def statistics(self) -> StalenessStatistics:
        """Return a snapshot for logs and the admin endpoint."""
        return StalenessStatistics(
            members=len(self._committed),
            parked=len(self._parked),
            slowest=self._slowest(),
            fastest=max(self._committed.values(), default=None),
        )

    def committed(self) -> dict[Rank, Step]:
        """Return a copy of the steps committed by each member."""
        return dict(self._committed)

    def ahead(self) -> list[tuple[Rank, Step, Step]]:
        """Return the steps that are finished while some before them aren't.

        Each entry has the worker, the first of the steps, and the one after the last.
        """
        return [
            (rank, first, end)
            for rank, ahead in self._ahead.items()
            for first, end in ahead.items()
        ]

    def restore(
        self, committed: Mapping[Rank, Step], ahead: Sequence[tuple[Rank, Step, Step]]
    ) -> None:
        """Take over the members of another gate; this one has no parked step.

        Args:
            committed: As ``committed()`` returns it.
            ahead: As ``ahead()`` returns it.
        """
        self._committed, self._ahead = dict(committed), {}
        for rank, first, end in ahead:
            self._ahead.setdefault(rank, {})[first] = end

    def _absorb(self, rank: Rank) -> None:
        """Count what is finished up to the next step that isn't."""
        ahead = self._ahead.get(rank, {})
        while ahead:
            first = min(ahead)
            if first > self._committed[rank] and len(ahead) <= MAX_AHEAD:
                break
            self._committed[rank] = max(self._committed[rank], ahead.pop(first))

    def _slowest(self) -> Step | None:
        return min(self._committed.values(), default=None)

    def _may_run(self, rank: Rank, step: Step) -> bool:
        slowest = self.slowest_but(rank)
        if slowest is None or self._max_lead_steps is None:
            return True
        return step - slowest <= self._max_lead_steps

    def _expect(self, rank: Rank) -> None:
        if rank not in self._committed:
            raise UnknownWorkerError(rank=rank)

    def _release(self) -> tuple[Release, ...]:
        ready = sorted(r for r, step in self._parked.items() if self._may_run(r, step))
        return tuple(Release(rank=r, step=self._parked.pop(r)) for r in ready)
