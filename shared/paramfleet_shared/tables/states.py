"""Whether numbers that come from a file or a wire are such as training makes."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import as_input
from paramfleet_shared.tables.routing import all_finite
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["check_rows", "check_states", "have_other_states", "states_for"]

_FIRST_LOG2 = {"momentum": 77, "adam": 52}
"""Momentum's buffer and Adam's mean stay below 2 to the power of this; see ``bounds``."""

# n = values, S = columns of state


def check_states(optimizer: OptimizerSpec, states: NDArray[np.float32]) -> str | None:
    """Return what is wrong with states float32 [S, n], None if nothing is."""
    if not all_finite(states):
        return "states hold infinities or NaN"
    limit = _FIRST_LOG2.get(optimizer.rule)
    if limit is not None and not all_finite(states[0], log2=limit):
        return f"states of {optimizer.rule} are not below 2^{limit}"
    if optimizer.rule in {"adagrad", "adam"} and bool((states[-1] < 0).any()):
        return f"sums of squares of {optimizer.rule} are negative"
    return None


def have_other_states(saved: OptimizerSpec, rule: OptimizerSpec) -> bool:
    """Return whether a rule can't go on with the states that another one saved."""
    either = saved.num_state_columns or rule.num_state_columns
    return saved.rule != rule.rule and bool(either)


def states_for(
    rule: OptimizerSpec,
    saved: OptimizerSpec,
    values: NDArray[np.float32],
    states: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the states that saved values have under a rule: those saved, or new ones.

    Only the same rule can go on with them: what another keeps means something else.

    Args:
        rule: Which trains from now on.
        saved: Which had trained.
        values: float32 [n], or [n, D] of a sparse table.
        states: float32 [S, n], or [n, S * D] of a sparse table.
    """
    if saved.rule == rule.rule:
        return states
    num_states = rule.num_state_columns
    shape = (num_states, len(values))
    if values.ndim > 1:
        shape = (len(values), num_states * values.shape[1])
    return np.full(shape, rule.initial_state, np.float32)


def check_rows(
    optimizer: OptimizerSpec, values: NDArray[np.float32], states: NDArray[np.float32]
) -> str | None:
    """Return what is wrong with what a file holds, None if nothing is.

    Args:
        optimizer: The rule of the states.
        values: float32 [n], or [n, D] of a sparse table.
        states: float32 [S, n], or [n, S * D] of a sparse table.
    """
    if not all_finite(values):
        return "values hold infinities or NaN"
    num_states = optimizer.num_state_columns
    if not num_states or not states.size:
        return None
    if values.ndim == 1:
        return check_states(optimizer, states)
    columns = states.reshape(len(values), num_states, -1).swapaxes(0, 1)
    return check_states(optimizer, as_input(columns, np.float32).reshape(num_states, -1))
