"""What the workers pushed for a step of synchronous training, until it is whole.

A step is complete when every one of its members has pushed. Its contributions
come out in rank order, whatever the order of arrival, each with the factor that
makes the step's gradient the weighted mean: ``weight_r / sum(weights)``. In a job whose
losses are sums over the batch the factor is 1, unless the weight is 0. Steps
come out one after the other, none skipped.

One task owns a reservoir. What a push carries is opaque here.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from paramfleet_pserver.core.membership import StepMembers
from paramfleet_shared.errors.served import (
    BadWeightError,
    PushRepeatedError,
    StepBegunError,
    StepPassedError,
    StepTooEarlyError,
)
from paramfleet_shared.values.bounds import MAX_WEIGHT
from paramfleet_shared.values.ids import Rank, Step

__all__ = [
    "CompleteStep",
    "Contribution",
    "StepReservoir",
    "check_weight",
    "shares",
]

MAX_AHEAD_STEPS = 4
"""Steps beyond the one in progress that may be pushed. A worker that pulls each
version before it pushes is never ahead at all; the bound is one on memory."""

Payload = TypeVar("Payload")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution(Generic[Payload]):
    """One member's part of a complete step."""

    rank: Rank
    scale: float
    """``weight / sum(weights)``; exactly 1.0 for a lone member, 0.0 if no weight is. Where
    gradients are added up 1.0, and 0.0 without a weight."""
    payload: Payload


@dataclass(frozen=True, kw_only=True, slots=True)
class CompleteStep(Generic[Payload]):
    """A step that every member has pushed, contributions in rank order."""

    step: Step
    contributions: tuple[Contribution[Payload], ...]


class StepReservoir(Generic[Payload]):
    """Pushes of the step in progress and a few after it.

    Args:
        members: Who takes part in which step; shared, and changed by ``leave``.
        max_ahead_steps: Steps beyond the one in progress that may be pushed.
    """

    def __init__(self, members: StepMembers, *, max_ahead_steps: int = MAX_AHEAD_STEPS) -> None:
        assert max_ahead_steps >= 0, "the caller validates this"
        self._members = members
        self._max_ahead_steps = max_ahead_steps
        self.sums = False
        """Whether the step's gradient is the sum of the workers'."""
        self._next = Step(0)
        self._pushed: dict[Step, dict[Rank, tuple[float, Payload]]] = {}

    @property
    def next_step(self) -> Step:
        """Return the step in progress: all before were taken out."""
        return self._next

    @property
    def num_members(self) -> int:
        """Return how many workers take part in the step in progress."""
        return len(self._members.of(self._next))

    def holds(self, rank: Rank, step: Step) -> bool:
        """Return whether a member's push of a step is kept here or was taken out."""
        return step < self._next or rank in self._pushed.get(step, {})

    def next_of(self, rank: Rank) -> Step:
        """Return the first step of which a member's push is still to come; where it left, that.

        What it has pushed is kept, whichever process of it pushed it.
        """
        left_at = self._members.left().get(rank)
        step = self._next
        while self.holds(rank, step):
            step = Step(step + 1)
        return step if left_at is None else min(step, left_at)

    def check(self, rank: Rank, step: Step, weight: float) -> None:
        """Refuse what ``add`` would refuse, and change nothing.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
            StepPassedError: if the step was taken out before.
            StepTooEarlyError: if the step is too far ahead.
            PushRepeatedError: if the worker pushed this step before.
            BadWeightError: if no mean can use the weight.
        """
        check_weight(rank, step, weight)
        self._members.expect(rank, step)
        if step < self._next:
            raise StepPassedError(rank=rank, step=step, next_step=self._next)
        if step > self._next + self._max_ahead_steps:
            raise StepTooEarlyError(
                rank=rank,
                step=step,
                next_step=self._next,
                max_ahead_steps=self._max_ahead_steps,
            )
        if rank in self._pushed.get(step, {}):
            raise PushRepeatedError(rank=rank, step=step)

    def check_in_progress(self, rank: Rank, step: Step) -> None:
        """Refuse a worker that is in another step, or has pushed this one.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
            StepPassedError: if it has pushed the step, or the step was taken out.
            StepTooEarlyError: if an earlier step is in progress.
        """
        self._members.expect(rank, step)
        if self.holds(rank, step):
            next_step = max(self._next, step + 1)
            raise StepPassedError(rank=rank, step=step, next_step=next_step)
        if step > self._next:
            raise StepTooEarlyError(
                rank=rank, step=step, next_step=self._next, max_ahead_steps=0
            )

    def check_untouched(self, rank: Rank, step: Step) -> None:
        """Refuse what belongs between two steps, once a worker has pushed this one.

        Raises:
            StepBegunError: naming that worker.
            FleetError: as ``check_in_progress``.
        """
        self.check_in_progress(rank, step)
        if pushed := self._pushed.get(step):
            raise StepBegunError(rank=rank, step=step, other=min(pushed))

    def add(self, rank: Rank, step: Step, weight: float, payload: Payload) -> None:
        """Keep a member's push of a step. Raises as ``check`` does, with no effect."""
        self.check(rank, step, weight)
        self.keep(rank, step, weight, payload)

    def pushed(self) -> Iterator[tuple[Rank, Step, float, Payload]]:
        """Yield what is kept: who pushed, for which step, with which weight and payload."""
        for step, pushed in self._pushed.items():
            for rank, (weight, payload) in pushed.items():
                yield rank, step, weight, payload

    def left(self) -> dict[Rank, Step]:
        """Return from which step on workers take no part."""
        return self._members.left()

    def restore(self, next_step: Step, left: Mapping[Rank, Step]) -> None:
        """Take over the progress of another reservoir; this one is new.

        What the other one kept is to be added by ``keep``.
        """
        self._next = next_step
        for rank, step in left.items():
            self._members.leave(rank, step)

    def keep(self, rank: Rank, step: Step, weight: float, payload: Payload) -> None:
        """Keep a push that was checked before, such as one of a worker that left since."""
        self._pushed.setdefault(step, {})[rank] = (weight, payload)

    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after; what it pushed stays.

        Call ``take`` afterwards: a step may be complete now.
        """
        self._members.leave(rank, step)

    def drop(self, rank: Rank, step: Step) -> list[Payload]:
        """Forget what a worker pushed for ``step`` and all after; return what that was."""
        later = [each for each in self._pushed if each >= step]
        found = [self._pushed[each].pop(rank, None) for each in later]
        return [pushed[1] for pushed in found if pushed is not None]

    def in_progress(self) -> tuple[Rank, ...]:
        """Return the workers that have pushed the step in progress."""
        return tuple(self._pushed.get(self._next, ()))

    def is_awaited(self, rank: Rank, step: Step) -> bool:
        """Return whether another worker has pushed a step that lacks this worker's push.

        Raises:
            NotAMemberError: if the worker takes no part in the step.
        """
        self._members.expect(rank, step)
        return not self.holds(rank, step) and bool(self._pushed.get(step))

    def pushed_weights(self) -> dict[Rank, float]:
        """Return the workers that have pushed the step in progress, and with which weight."""
        return {rank: weight for rank, (weight, _) in self._pushed.get(self._next, {}).items()}

    def missing(self) -> tuple[Rank, ...]:
        """Return the members that the step in progress waits for."""
        pushed = self._pushed.get(self._next, {})
        return tuple(rank for rank in self._members.of(self._next) if rank not in pushed)

    def take(self) -> CompleteStep[Payload] | None:
        """Take out the step in progress if it is complete.

        Returns:
            The step, to be applied now, or None. Call again: the next one may be
            complete too.
        """
        pushed = self._pushed.get(self._next)
        if not pushed or self.missing():
            return None
        step = self._next
        del self._pushed[step]
        self._next = Step(step + 1)
        scales = shares({rank: weight for rank, (weight, _) in pushed.items()}, sums=self.sums)
        return CompleteStep(
            step=step,
            contributions=tuple(
                Contribution(rank=rank, scale=scales[rank], payload=pushed[rank][1])
                for rank in sorted(pushed)
            ),
        )


def check_weight(rank: Rank, step: Step, weight: float) -> None:
    """Pass if a mean can use a weight.

    Raises:
        BadWeightError: if it isn't finite, or is negative or too large.
    """
    if not 0 <= weight <= MAX_WEIGHT:
        raise BadWeightError(rank=rank, step=step, weight=weight)


def shares(weights: Mapping[Rank, float], *, sums: bool) -> dict[Rank, float]:
    """Return by what each worker's gradient is multiplied in a step.

    Args:
        weights: Of all workers that take part in it.
        sums: Whether the step's gradient is the sum of theirs, and not the weighted mean.
    """
    if sums:
        return {rank: float(weight > 0) for rank, weight in weights.items()}
    total = math.fsum(weights.values())
    return {rank: weight / total if total > 0 else 0.0 for rank, weight in weights.items()}
