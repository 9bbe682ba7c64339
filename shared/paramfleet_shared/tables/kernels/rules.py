"""The rules' formulas, compiled for vectors and floats.

A rule's record has them (``tables.rules``). Each takes a value, its state and its gradient,
and returns the new ones. The order of operations is torch's
(``torch/optim/{sgd,adagrad,adam,_functional}.py``), so that results agree to rounding.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.bounds import LARGEST_GRADIENT
from paramfleet_shared.tables.kernels.compiled import inlined, kernel, merged
from paramfleet_shared.tables.kernels.hashing import mix
from paramfleet_shared.tables.kernels.lanes import (
    LANES,
    cut,
    load_float,
    load_lanes,
    load_line,
    round_float,
    round_lanes,
    round_line,
    square_root,
    store_float,
    store_lanes,
    store_line,
)
from paramfleet_shared.tables.rules.adam import LAZY
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import MAX_CONSTANTS, Moment
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = [
    "LAZY_ADAM",
    "Step",
    "noise_of",
    "plain_adam",
    "step_line",
    "step_of",
    "step_range",
    "step_row",
    "step_span",
]

_NO_DECAY = np.float32(0.0)
_LARGEST = np.float32(LARGEST_GRADIENT)


def _updates_by_states() -> tuple[list[Any], list[Any], list[Any]]:
    """Return the formulas' functions, those of 0, 1 and 2 columns of state, each once."""
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for rule in RULES.values():
        for formula in rule.formulas:
            known = found[len(rule.columns)]
            if formula.update not in known:
                known.append(formula.update)
    return found


_UPDATES = _updates_by_states()
_FIRSTS = (0, len(_UPDATES[0]), len(_UPDATES[0]) + len(_UPDATES[1]))
"""The numbers of the first formulas with 0, 1 and 2 columns of state."""

_NUMBER_OF = {
    update: number for number, update in enumerate(_UPDATES[0] + _UPDATES[1] + _UPDATES[2])
}

FIRST_OF_ONE, FIRST_OF_TWO = _FIRSTS[1:]
LAZY_ADAM = _NUMBER_OF[LAZY.update]


class Step(NamedTuple):
    """One step of a rule: its formula, and its numbers in float32.

    Scalars, not an array: they stay in registers.
    """

    rule: int
    """The number of the formula."""
    rate: np.float32
    weight_decay: np.float32
    constants: tuple[np.float32, ...]
    """``MAX_CONSTANTS``, 0 where the formula has none."""
    salt: np.uint64
    """With a row's key it makes the noise that its new value is rounded by; 0 for none."""


def step_of(
    spec: OptimizerSpec, *, sparse: bool, lr: float, step: int, first: bool = False
) -> Step:
    """Return a rule's step, its numbers computed in float64.

    Args:
        spec: The rule and its constants.
        sparse: Whether the table is: sparse Adam folds its corrections into the rate.
        lr: Learning rate of this step.
        step: This step's number, from 1.
        first: Whether momentum has no buffer yet: torch starts it as the gradient,
            undampened.
    """
    constants, record = spec.constants, spec.record
    formula = record.formulas[record.choose(constants, sparse)]
    numbers = formula.numbers(constants, Moment(lr, step, first))
    none = [0.0] * (MAX_CONSTANTS - len(numbers.constants))
    return Step(
        _NUMBER_OF[formula.update],
        np.float32(numbers.rate),
        np.float32(numbers.weight_decay),
        tuple(np.float32(number) for number in (*numbers.constants, *none)),
        np.uint64(0),
    )


def _chosen(number: int, update: Any, otherwise: Any) -> Any:
    @inlined
    def choose(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
        """Step by one formula, or by one of the others."""
        if step.rule == number:
            moved = update(step, value, states, grad, functions)
        else:
            moved = otherwise(step, value, states, grad, functions)
        return moved

    return choose


def _any_of(num_states: int) -> Any:
    """Return what steps by the formulas with so many columns of state."""
    *numbered, (_, last) = enumerate(_UPDATES[num_states], _FIRSTS[num_states])
    choose = inlined(last)
    for number, update in reversed(numbered):
        choose = _chosen(number, inlined(update), choose)

    @merged
    def move(step: Any, value: Any, states: Any, grad: Any) -> Any:
        """Return the new value and states."""
        return choose(step, value, states, grad, (square_root, cut))

    return move


_no_state, _one_state, _two_states = _any_of(0), _any_of(1), _any_of(2)


@inlined
def _advance(step: Step, arrays: Any, at: Any, functions: Any, dither: Any) -> None:
    """Step what lies at ``at`` = offsets of (value, state, second state, gradient).

    ``functions`` take a number, put one, and round one; ``dither`` = (noise, column).
    """
    values, states, grads = arrays
    take, put, round_off = functions
    noise, column = dither
    value, grad = take(values, at[0]), take(grads, at[3])
    if step.weight_decay != 0:
        grad = cut(grad + value * step.weight_decay, _LARGEST)
    if step.rule < FIRST_OF_ONE:
        value, _none = _no_state(step, value, (), grad)
        round_off(values, at[0], value, noise, column)
    elif step.rule < FIRST_OF_TWO:
        value, kept = _one_state(step, value, (take(states, at[1]),), grad)
        round_off(values, at[0], value, noise, column)
        put(states, at[1], kept[0])
    else:
        both = take(states, at[1]), take(states, at[2])
        value, pair = _two_states(step, value, both, grad)
        round_off(values, at[0], value, noise, column)
        put(states, at[1], pair[0])
        put(states, at[2], pair[1])


@inlined
def step_row(step: Step, arrays: Any, at: Any, count: int, noise: Any) -> None:
    """Step ``count`` neighbours from ``at`` = offsets of (value, state, second, gradient).

    ``arrays`` = (values, states, gradients), flat; the first two may be one.
    """
    value, state, second, grad = at
    whole = count - count % LANES
    for j in range(0, whole, LANES):
        here = (value + j, state + j, second + j, grad + j)
        functions = (load_lanes, store_lanes, round_lanes)
        _advance(step, arrays, here, functions, (noise, j))
    for j in range(whole, count):
        here = (value + j, state + j, second + j, grad + j)
        functions = (load_float, store_float, round_float)
        _advance(step, arrays, here, functions, (noise, j))


@inlined
def step_line(step: Step, arrays: Any, at: Any, noise: Any) -> None:
    """As ``step_row`` of ``LINE_LANES`` numbers."""
    _advance(step, arrays, at, (load_line, store_line, round_line), (noise, 0))


@inlined
def plain_adam(step: Step) -> Step:
    """Return a step of sparse Adam without weight decay, of which the compiler knows that."""
    _rule, rate, _decay, constants, salt = step
    return Step(LAZY_ADAM, rate, _NO_DECAY, constants, salt)


@inlined
def _undecayed(step: Step) -> Step:
    """Return a step without weight decay, of which the compiler knows that."""
    rule, rate, _decay, constants, salt = step
    return Step(rule, rate, _NO_DECAY, constants, salt)


@inlined
def step_span(step: Step, table: Any, grads: Any, at: Any, count: int) -> None:
    """As ``step_row``, where values and states are floats of one array."""
    step_row(step, (table, table, grads), at, count, np.uint32(0))


@inlined
def noise_of(step: Step, key: np.uint64) -> Any:
    """Return by what a row's new numbers are rounded: 0 for to nearest."""
    if step.salt == 0:
        return np.uint32(0)
    return np.uint32(mix(key ^ step.salt)) | np.uint32(1)


@kernel
def step_range(
    step: Step, table: NDArray[np.float32], grads: NDArray[np.float32], start: int, length: int
) -> None:
    """Step some values of a range: those from ``start`` on, as many as ``grads``.

    ``table`` [1 + S, length] is flat, value by value, then state by state.
    """
    count = grads.size
    at = (start, length + start, 2 * length + start, 0)
    if step.weight_decay == 0:
        step_span(_undecayed(step), table, grads, at, count)
    else:
        step_span(step, table, grads, at, count)
