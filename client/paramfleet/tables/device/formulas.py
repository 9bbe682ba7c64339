"""A rule's step by torch's operations, on any device.

It is the formula of the rule's record, as the kernels compile it. Each operation rounds by
itself, and sums have the order of the kernels, so that on a processor the numbers are theirs,
bit for bit.

Shape legend: U = rows, D = row width, C = width of a state: D, or 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from paramfleet_shared.tables.kernels.basics.lanes import LANES
from paramfleet_shared.tables.rules.record import MAX_CONSTANTS, Formula, Moment
from paramfleet_shared.tables.spec import OptimizerSpec
from paramfleet_shared.values.bounds import LARGEST_GRADIENT

__all__ = ["step_rows_at", "step_values"]


class _Step(NamedTuple):
    """What a formula computes with, as ``kernels.stepping.rules.Step`` has it."""

    rate: torch.Tensor
    constants: tuple[torch.Tensor, ...]
    decay: torch.Tensor | None = None
    """What weights are multiplied by and added to gradients; None for nothing."""


def step_values(
    spec: OptimizerSpec,
    moment: Moment,
    values: torch.Tensor,
    states: Sequence[torch.Tensor],
    grads: torch.Tensor,
    *,
    sparse: bool,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return new values and states; those given stay as they are.

    Args:
        spec: The rule and its constants.
        moment: Learning rate and number of the step.
        values: float32 [U, D].
        states: float32 [U, C] each, in the order of the rule's columns.
        grads: float32 [U, D].
        sparse: Whether they are rows of a sparse table, whose formula may be another one.
    """
    formula, step = _numbers_of(spec, moment, sparse=sparse)
    return _apply(formula, step, values, tuple(states), grads)


def step_rows_at(
    spec: OptimizerSpec,
    moment: Moment,
    rows: torch.Tensor,
    places: torch.Tensor,
    grads: torch.Tensor,
    spans: Sequence[slice],
) -> None:
    """Let a rule step some of many rows, in place.

    Args:
        spec: The rule and its constants.
        moment: Learning rate and number of the step.
        rows: float32 [n, P], with all columns.
        places: int64 [U]: which, each once.
        grads: float32 [U, D].
        spans: Where in a row the value is, and then each state.
    """
    formula, step = _numbers_of(spec, moment, sparse=True)
    held = rows.index_select(0, places)
    value, *states = (held[:, span] for span in spans)
    moved, kept = _apply(formula, step, value, tuple(states), grads)
    for span, column in zip(spans, (moved, *kept), strict=True):
        held[:, span] = column
    rows.index_copy_(0, places, held)


def _numbers_of(
    spec: OptimizerSpec, moment: Moment, *, sparse: bool
) -> tuple[Formula, "_Step"]:
    """Return the formula of a step, and its numbers as tensors."""
    record = spec.record
    formula = record.formulas[record.choose(spec.constants, sparse)]
    numbers = formula.numbers(spec.constants, moment)
    none = (0.0,) * (MAX_CONSTANTS - len(numbers.constants))
    constants = tuple(map(_float, (*numbers.constants, *none)))
    decay = _float(numbers.weight_decay) if numbers.weight_decay else None
    return formula, _Step(_float(numbers.rate), constants, decay)


def _apply(
    formula: Formula,
    step: "_Step",
    values: torch.Tensor,
    states: tuple[torch.Tensor, ...],
    grads: torch.Tensor,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return new values and states."""
    if step.decay is not None:
        grads = _cut(grads + values * step.decay, _float(LARGEST_GRADIENT))
    if formula.row_rate is not None:
        return _step_rows(formula, step, values, states[0], grads)
    moved, kept = formula.update(step, values, states, grads, _FUNCTIONS)
    return moved, kept


def _step_rows(
    formula: Formula,
    step: _Step,
    values: torch.Tensor,
    state: torch.Tensor,
    grads: torch.Tensor,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Step rows whose rate is their own, by the one state that each has."""
    assert formula.row_rate is not None, "the caller looked"
    rate, kept = formula.row_rate(step, state, _mean_square(grads), _FUNCTIONS)
    moved, _none = formula.update(step._replace(rate=rate), values, (), grads, _FUNCTIONS)
    return moved, (kept,)


def _mean_square(grads: torch.Tensor) -> torch.Tensor:
    """Return the mean square of each row of [U, D]: [U, 1], summed as the kernels do."""
    squares, count = grads * grads, grads.shape[1]
    whole = count - count % LANES
    total = grads.new_zeros((len(grads), 1))
    if whole:
        lanes = squares[:, :LANES]
        for start in range(LANES, whole, LANES):
            lanes = lanes + squares[:, start : start + LANES]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
        total = lanes
    for column in range(whole, count):
        total = total + squares[:, column : column + 1]
    return total / count


def _float(number: float) -> torch.Tensor:
    """Return a number in float32, without a device: sums of two of them round, too."""
    return torch.from_numpy(np.array(number, np.float32))


def _square_root(numbers: torch.Tensor) -> torch.Tensor:
    """Return roots rounded to nearest, as the kernels' are.

    On a processor torch's float32 roots are off by the last bit now and then.
    """
    if numbers.device.type == "cpu":
        return numbers.to(torch.float64).sqrt().to(torch.float32)
    return numbers.sqrt()


def _cut(numbers: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    bound = limit.to(numbers.device)  # unlike arithmetic, it takes no number of the host
    return numbers.clamp(-bound, bound)


_FUNCTIONS: Any = (_square_root, _cut)
