"""Whether a step's loss and gradient are in their ranges: a core without input and output."""

import math
from dataclasses import dataclass

from paramfleet.config.plans.guards import GuardPlan

__all__ = ["Guard", "Outside", "RunningMean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """What of a step is out of its range."""

    what: str
    """The loss, or the gradient's norm."""
    value: float
    rule: str
    """What it must be."""

    def words(self) -> str:
        """Return it as a sentence without its end."""
        return f"{self.what} is {self.value:.6g}, and must be {self.rule}"


class RunningMean:
    """A mean in which old values fade; of the first ones the plain mean.

    Args:
        window: So many values it is of.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Take in a finite value."""
        self.count += 1
        self.value += (value - self.value) / min(self.count, self._window)


class Guard:
    """Judges a worker's steps, one after the other.

    Args:
        plan: The ranges.
    """

    def __init__(self, plan: GuardPlan) -> None:
        self._plan = plan
        self._losses = RunningMean(plan.window)
        self._norms = RunningMean(plan.window)
        self.in_a_row = 0
        """Steps outside since the last one that was inside."""

    def judge(self, loss: float | None, norm: float) -> Outside | None:
        """Return what of a step is outside; None if all is inside, which moves the means.

        Args:
            loss: Of the batch; None if it isn't known.
            norm: The gradient's.
        """
        found = None if loss is None else self._of_loss(loss)
        found = found or self._of_norm(norm)
        if found is not None:
            self.in_a_row += 1
            return found
        self.in_a_row = 0
        if loss is not None:
            self._losses.add(abs(loss))
        self._norms.add(norm)
        return None

    @property
    def mean_loss(self) -> float | None:
        """Return the running mean of the losses' sizes; None before the first."""
        return self._losses.value if self._losses.count else None

    @property
    def is_beyond(self) -> bool:
        """Return whether more steps were outside in a row than may be skipped."""
        return bool(self._plan.max_skips) and self.in_a_row > self._plan.max_skips

    def _of_loss(self, loss: float) -> Outside | None:
        plan, rule = self._plan, ""
        if not math.isfinite(loss):
            rule = "a finite number"
        elif plan.loss_min is not None and loss < plan.loss_min:
            rule = f"at least {plan.loss_min:g}"
        elif plan.loss_max is not None and loss > plan.loss_max:
            rule = f"at most {plan.loss_max:g}"
        else:
            rule = self._relative(plan.loss_times, self._losses, abs(loss), " in size")
        return Outside(what="the loss", value=loss, rule=rule) if rule else None

    def _of_norm(self, norm: float) -> Outside | None:
        plan, rule = self._plan, ""
        if not math.isfinite(norm):
            rule = "a finite number"
        elif plan.grad_norm_max is not None and norm > plan.grad_norm_max:
            rule = f"at most {plan.grad_norm_max:g}"
        else:
            rule = self._relative(plan.grad_norm_times, self._norms, norm, "")
        return Outside(what="the gradient's norm", value=norm, rule=rule) if rule else None

    def _relative(self, times: float | None, mean: RunningMean, size: float, of: str) -> str:
        """Return what a size must be, if it is above so many times the mean; else nothing."""
        if times is None or mean.count < self._plan.warm_up or size <= times * mean.value:
            return ""
        return f"at most {times:g} times the mean of {mean.value:.6g}{of}"
