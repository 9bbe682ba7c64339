"""A rule for one part of a row, as data: Fleet's sparse rules, one in one module each.

Fleet trains a row in two parts, the first weight (``embed``) and the others (``embedx``), each
by a rule of its own. A rule has numbers of state for each weight, and others of the part as a
whole. It is pure functions of numbers, which kernels compile (``kernels.stepping.ctr``): they
may use arithmetic, tuples and ``math.sqrt``. All is computed in float64, and kept in float32.

Formulas: Paddle, ``paddle/fluid/distributed/ps/table/sparse_sgd_rule.cc``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from paramfleet_shared.tables.rules.record import Constant, Constants

__all__ = ["MAX_PART_CONSTANTS", "PartRule", "PartState"]

MAX_PART_CONSTANTS = 3
"""Of a rule, beside its learning rate and its bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartState:
    """A number of state."""

    name: str
    first: str | None = None
    """The constant that it begins as; None for 0."""
    not_negative: bool = False
    """Whether it is a sum or a mean of squares."""
    merge: Literal["mean", "sum"] = "mean"
    """How the states of workers that trained apart become one, as of ``Column``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartRule:
    """A rule that steps the weights of a part.

    ``begin(numbers, states, mean, mean_square)`` is called once a step: of the part's states
    and of the mean of its gradients and of their squares it returns (what ``update`` takes as
    ``shared``, the new states). ``update(numbers, value, states, grad, shared)`` is called for
    each weight, and returns (the new value, its new states). ``numbers`` has ``rate`` and
    ``constants``, in the order of the record, filled up with zeros.
    """

    name: str
    """Fleet's."""
    constants: tuple[Constant, ...] = ()
    of_weights: tuple[PartState, ...] = ()
    """States that each weight has."""
    of_part: tuple[PartState, ...] = ()
    """States that the part has."""
    per_show: bool = False
    """Whether gradients are divided by the shows of the step: so it steps by their mean."""
    begin: Callable[..., Any]
    update: Callable[..., Any]

    def numbers(self, constants: Constants, prefix: str) -> tuple[float, ...]:
        """Return the constants in the record's order, filled up with zeros."""
        found = [float(constants[f"{prefix}_{each.name}"]) for each in self.constants]
        return (*found, *[0.0] * (MAX_PART_CONSTANTS - len(found)))
