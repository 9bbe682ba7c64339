"""By which power of the number of workers GEO divides what several changed.

What N workers learned apart is added divided by N to a power: at 0 all of it, at 1 the mean.
``damped`` and ``mean`` have one power. ``paced`` has the one that fits the optimizer and how
far the training is:

* SGD takes steps as long as its gradients. The first ones all point the same way, so the power
  begins at 1; it is 0 after ``WARM_STEPS``. Near the largest rate the sum diverges: the servers
  guard it, and raise the power where differences grow much longer than usual.
* Adam's steps have one length, and the first ones lead far: their sum is what one process would
  take, as long as each exchange is waited for. What workers learn apart later is noise for the
  most part. So the power grows to a half in the ``EARLY_STEPS`` that all workers take together
  after those that wait. Rows of ``Adam`` and ``SparseAdam`` keep 0: their moments stand for the
  gradients of all workers (``RowStepper``), so that steps are as long as those of one process.
* All else has the power of a half.
"""

from typing import NamedTuple

import torch

from paramfleet.config.strategy import GeoMerge
from paramfleet.tables.combined import parts_of
from paramfleet.tables.rules import pace_of

__all__ = ["EARLY_STEPS", "HALF", "WARM_STEPS", "Powers", "powers_at"]

WARM_STEPS = 12
EARLY_STEPS = 800
HALF = 0.5
_ADAMS = (torch.optim.Adam, torch.optim.SparseAdam)


class Powers(NamedTuple):
    """Of the number of workers."""

    dense: float
    rows: float
    """Here the number is of those that changed the same row at the same time."""
    guarded: bool = False
    """Whether the servers keep differences from growing."""
    rate: float = 1.0
    """The learning rate: differences grow with it, and that is no overshoot."""

    def fields(self, *, dense: bool, num_steps: int) -> dict[str, float]:
        """Return what a part of an exchange says of them.

        Args:
            dense: Whether the part is of a dense table.
            num_steps: Steps that its differences are of.
        """
        fields: dict[str, float] = {}
        if power := self.dense if dense else self.rows:
            fields["damping"] = power
        if self.guarded and (steps := num_steps * self.rate) > 0.0:
            fields["guarded_steps"] = steps
        return fields


def powers_at(
    merge: GeoMerge,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    workers: int,
    fresh_steps: int = 0,
) -> Powers:
    """Return the powers of an exchange; 0 where a worker divides by itself.

    Args:
        merge: The strategy's.
        optimizer: The one that runs on the workers.
        step: Steps that the worker has taken.
        workers: N, at least 1.
        fresh_steps: Of the first steps, how many wait for their exchange.
    """
    if merge == "damped":
        return Powers(HALF, HALF)
    if merge == "mean":
        return Powers(1.0, 1.0)
    if merge != "paced":
        return Powers(0.0, 0.0)
    pace = pace_of(optimizer)
    if pace == "gradients":
        power = max(0.0, 1.0 - step / WARM_STEPS)
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        return Powers(power, power, guarded=True, rate=rate)
    if pace == "even":
        power = HALF * min(1.0, max(0, step - fresh_steps) * workers / EARLY_STEPS)
        stands_for_all = all(type(part) in _ADAMS for part in parts_of(optimizer))
        return Powers(power, 0.0 if stands_for_all else power)
    return Powers(HALF, HALF)
