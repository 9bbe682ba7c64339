"""How many steps workers may go apart: adaptive communication.

The expected error after a while of training has a term that shrinks with the period
(waiting costs time) and one that grows with learning rate and period (models drift apart).
The period that balances them grows as the learning rate decays and shrinks as the loss
falls: Wang & Joshi, "Adaptive Communication Strategies to Achieve the Best Error-Runtime
Trade-off in Local-Update SGD", 2018, eq. 16. Paddle Fleet has the first period inside the
root, so that it counts by its root only; both are here.
"""

import math

from paramfleet_shared.errors import ContractError

__all__ = ["AdaptiveInterval", "LossError", "fleet_interval", "paper_interval"]


class LossError(ContractError):
    """A loss from which no period follows: the formulas divide losses by the first."""

    code = "contract.localsgd_loss"
    step: int
    loss: float
    sentence = (
        "the loss of step {step} is {loss}: an adaptive period needs losses that are "
        "finite and more than 0; use a fixed k_steps, or give another loss"
    )


def paper_interval(ratio: float, first: int) -> float:
    """Return K0 * sqrt(lr_0 * loss_t / (lr_t * loss_0)), not rounded.

    Args:
        ratio: What is under the root.
        first: K0, the first period, in steps.
    """
    return first * math.sqrt(ratio)


def fleet_interval(ratio: float, first: int) -> float:
    """Return sqrt(lr_0 * loss_t / (lr_t * loss_0) * K0), not rounded."""
    return math.sqrt(ratio * first)


_FORMULAS = {"paper": paper_interval, "fleet": fleet_interval}


class AdaptiveInterval:
    """The period that follows from loss and learning rate.

    Args:
        variant: ``paper`` or ``fleet``.
        first: K0, the first period, in steps.
        most: No period is longer.
    """

    def __init__(self, variant: str, *, first: int, most: int) -> None:
        self._formula = _FORMULAS[variant]
        self._first = first
        self._most = most
        self.reference: tuple[float, float] | None = None
        """Loss and learning rate at the beginning, once they are known."""

    def choose(self, *, step: int, loss: float, rate: float) -> int:
        """Return the next period; later losses are compared with the first one.

        Args:
            step: At which the workers synchronized.
            loss: The mean of theirs.
            rate: The learning rate; at 0 nobody drifts, and the period is the longest.

        Raises:
            LossError: if the loss isn't finite and more than 0.
        """
        if not (math.isfinite(loss) and loss > 0):
            raise LossError(step=step, loss=loss)
        if self.reference is None:
            self.reference = (loss, rate)
            return min(self._first, self._most)
        first_loss, first_rate = self.reference
        if rate <= 0:
            return self._most
        chosen = self._formula(first_rate * loss / (rate * first_loss), self._first)
        return max(1, min(math.ceil(chosen), self._most))
