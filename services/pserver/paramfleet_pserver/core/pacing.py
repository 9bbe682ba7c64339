"""How far async steps with a gradient, so that N workers don't overshoot.

Gradients of N workers are about N updates old when they are applied. While a model is young
they all point the same way, and N steps by them are one step of N times the rate. Later they
differ, and N steps are what one process would take. So a table's rate begins as its N-th part
and grows to the whole in its first updates: ``pace_of``.

With SGD near its largest rate that isn't enough: delayed gradients overshoot each time farther
than before, and grow longer each time. ``RateGuard`` compares the gradients of the last updates
with those of many. Where they are much longer, it shortens them to what is usual and lowers the
rate, down to the N-th part; then it lets the rate grow back slowly. Where they stay so long
although the steps are small, the data has changed, not the workers' aim, and the new length is
the usual one from then on. Adagrad and Adam divide by the length themselves.

The rate is divided by N to a power, 0 for the whole rate and 1 for the N-th part. For N = 1 it
is the whole rate whatever the power is.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from paramfleet_shared.tables.rules.record import Pace as RulePace
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = [
    "ASYNC_RATES",
    "AsyncRate",
    "Pace",
    "RateGuard",
    "Stride",
    "guard_facts",
    "is_guarded",
    "pace_of",
]

AsyncRate = Literal["guarded", "full"]
ASYNC_RATES: tuple[AsyncRate, ...] = ("guarded", "full")
"""``full`` takes the whole rate at every update."""

WARM_STEPS = 12
"""Updates of each worker over which the rate grows."""
_WARMED: frozenset[RulePace] = frozenset({"gradients", "first_gradients"})
"""Rules that step as far as the gradients are long, or, Adagrad, as far as the first ones are.
Adam's mean begins slowly already."""

SLOW_STEPS, LEAST_SLOW = 8.0, 64
"""Updates of each worker, and in all, over which the usual length is averaged at least."""
FAST_STEPS, LEAST_FAST = 0.5, 8
"""And the present one: gradients of few examples differ much in length."""
MOST_GROWTH = 2.5
"""Times the usual squared length that the present one may be."""
MOST_SQUARE = 4.0
"""Times the usual squared length that a gradient is shortened to."""
MOST_COUNTED = 36.0
"""Times the usual squared length that one gradient counts for in the present one."""
RISE = 2.0
"""By which the power grows in one update of each worker."""
LONG_STEPS, LEAST_LONG = 4.0, 32
"""Updates of each worker, and in all, after which long gradients are the usual ones: steps as
small as the guard's would have brought an overshoot back by then."""
FALL_STEPS = 64.0
"""Updates of each worker in which the power falls to a third."""

_LEAST_SQUARE, _MOST_SQUARE = 1e-300, 1e300
"""Of what has a logarithm."""


class Pace(NamedTuple):
    """What is known before the gradient."""

    workers: int
    """N, those that take part now."""
    power: float
    """Of N, by which the rate is divided at least."""

    @property
    def share(self) -> float:
        """Return the part of the rate that is taken at most."""
        return self.share_at(self.power)

    def share_at(self, power: float) -> float:
        """Return the part of the rate that is taken at another power."""
        return float(self.workers**-power)


class Stride(NamedTuple):
    """How far to step with one gradient."""

    scale: float
    """What the gradient is multiplied by."""
    power: float
    """Of the number of workers, by which the rate is divided."""


def pace_of(spec: OptimizerSpec, *, update: int, workers: int) -> Pace:
    """Return the pace of a table's update.

    Args:
        spec: The table's rule.
        update: The update's number, from 1.
        workers: That take part now, at least 1.
    """
    if spec.record.pace not in _WARMED:
        return Pace(workers, 0.0)
    return Pace(workers, max(0.0, 1.0 - (update - 1) / (WARM_STEPS * workers)))


def is_guarded(spec: OptimizerSpec) -> bool:
    """Return whether a rule needs a ``RateGuard``."""
    return spec.record.pace == "gradients"


def guard_facts(guards: Sequence["RateGuard"]) -> dict[str, float]:
    """Return what the guards of a table's parts have done, as numbers to watch.

    Args:
        guards: Of each part; the owner of one goes on meanwhile.
    """
    return {
        "guarded": sum(guard.num_updates for guard in guards),
        "shortened": sum(guard.num_shortened for guard in guards),
        "rate_power": max((guard.power for guard in guards), default=0.0),
    }


class RateGuard:
    """Watches the gradients of a table, or of a part of it. One thread owns it."""

    def __init__(self) -> None:
        self._usual = 0.0
        self._present = 0.0
        self.power = 0.0
        """Of the number of workers, by which the rate is divided at least."""
        self.num_updates = 0
        self.num_shortened = 0
        self._num_long = 0
        """Updates in a row that found the present length too great."""
        self._level = 0.0
        """Mean logarithm of their squared lengths: one out of all measure counts as one."""

    def numbers(self) -> tuple[float, ...]:
        """Return what decides later strides."""
        return tuple(float(value) for value in vars(self).values())

    def restore(self, numbers: Sequence[float]) -> None:
        """Take over the numbers of another guard.

        Raises:
            ValueError: if there aren't as many.
        """
        for (name, value), number in zip(vars(self).items(), numbers, strict=True):
            setattr(self, name, type(value)(number))

    def stride(self, square: float, pace: Pace) -> Stride:
        """Return how far to step with the next gradient.

        Args:
            square: Its squared length, 0 or more.
            pace: Of the update.
        """
        workers = pace.workers
        self.num_updates += 1
        watches = self.num_updates > workers and self._usual > 0.0
        taken, counted = square, square
        if watches:
            taken = min(square, MOST_SQUARE * self._usual)
            counted = min(square, MOST_COUNTED * self._usual)
        is_short = taken < square
        self.num_shortened += is_short
        scale = (taken / square) ** 0.5 if is_short else 1.0
        slow = max(LEAST_SLOW, SLOW_STEPS * workers)
        fast = max(LEAST_FAST, FAST_STEPS * workers)
        self._usual += (taken - self._usual) / min(self.num_updates, slow)
        self._present += (counted - self._present) / min(self.num_updates, fast)
        if watches and self._present > MOST_GROWTH * self._usual:
            self.power = min(1.0, self.power + RISE / workers)
            self._note_long(square, max(LEAST_LONG, LONG_STEPS * workers))
        else:
            self.power -= self.power / (FALL_STEPS * workers)
            self._num_long, self._level = 0, 0.0
        return Stride(scale, max(pace.power, self.power))

    def _note_long(self, square: float, patience: float) -> None:
        """Count an update that found the present length too great; believe many in a row."""
        self._num_long += 1
        within = min(max(square, _LEAST_SQUARE), _MOST_SQUARE)
        self._level += (math.log(within) - self._level) / self._num_long
        if self._num_long >= patience:
            self._usual = self._present = math.exp(self._level)
            self._num_long, self._level = 0, 0.0
