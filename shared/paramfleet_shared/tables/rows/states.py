"""Whether numbers that come from a file or a wire are such as training makes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.routing import all_finite
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec

__all__ = [
    "check_row_states",
    "check_rows",
    "check_states",
    "have_other_states",
    "states_for",
]

# n = rows or values, S = columns of state, D = values of a row, W = floats of a row's state


def check_states(optimizer: OptimizerSpec, states: NDArray[np.float32]) -> str | None:
    """Return what is wrong with states float32 [S, n], None if nothing is."""
    return _check_columns(optimizer, list(states))


def check_row_states(
    optimizer: OptimizerSpec, states: NDArray[np.float32], dim: int
) -> str | None:
    """Return what is wrong with the states of rows, float32 [n, W], None if nothing is.

    Args:
        optimizer: The rule of the states.
        states: As a shard exports them.
        dim: D.
    """
    spans = RowLayout.of_states(optimizer, dim).spans.values()
    return _check_columns(
        optimizer, [as_input(states[:, span], np.float32).reshape(-1) for span in spans]
    )


def _check_columns(
    optimizer: OptimizerSpec, columns: Sequence[NDArray[np.float32]]
) -> str | None:
    known = list(zip(optimizer.columns, columns, strict=True))
    if not all(all_finite(column) for column in columns):
        return "states hold infinities or NaN"
    for said, column in known:
        if said.log2 is not None and not all_finite(column, log2=said.log2):
            return f"states of {optimizer.rule} are not below 2^{said.log2}"
    for said, column in known:
        if said.not_negative and bool((column < 0).any()):
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

    Only the same rule can go on with them: what another keeps means something else, but for
    when a row was pushed last. A column that it has and the saved ones haven't, or of another
    width, begins anew.

    Args:
        rule: Which trains from now on.
        saved: Which had trained.
        values: float32 [n], or [n, D] of a sparse table.
        states: float32 [S, n], or [n, W] of a sparse table.
    """
    dim = 1 if values.ndim == 1 else values.shape[1]
    new, former = (RowLayout.of_states(each, dim) for each in (rule, saved))
    if saved.rule == rule.rule and new == former:
        return states
    rows = new.new_rows(len(values))
    columns = set(new.columns) & set(former.columns)
    if saved.rule != rule.rule:
        columns = {column for column in columns if column.name == SEEN.name}
    if columns:
        had = states.T if values.ndim == 1 else states
        for column in columns:
            rows[:, new.spans[column.name]] = had[:, former.spans[column.name]]
    return rows if values.ndim > 1 else rows.T.copy()


def check_rows(
    optimizer: OptimizerSpec, values: NDArray[np.float32], states: NDArray[np.float32]
) -> str | None:
    """Return what is wrong with what a file holds, None if nothing is.

    Args:
        optimizer: The rule of the states.
        values: float32 [n], or [n, D] of a sparse table.
        states: float32 [S, n], or [n, W] of a sparse table.
    """
    if not all_finite(values):
        return "values hold infinities or NaN"
    if not states.size:
        return None
    if values.ndim == 1:
        return check_states(optimizer, states)
    return check_row_states(optimizer, states, values.shape[1])
