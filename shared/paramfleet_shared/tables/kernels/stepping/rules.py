"""The rules' formulas, compiled for vectors and floats.

A rule's record has them (``tables.rules``). Each takes a value, its state and its gradient,
and returns the new ones. The order of operations is torch's
(``torch/optim/{sgd,adagrad,adam,_functional}.py``), so that results agree to rounding.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel, merged, uncounted
from paramfleet_shared.tables.kernels.basics.hashing import mix
from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    LINE_LANES,
    cut,
    folded,
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
from paramfleet_shared.values.bounds import LARGEST_GRADIENT

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


_Parts = tuple[Any, Any]
"""A formula's functions: ``update``, and ``row_rate`` or None."""


def _parts_by_states() -> tuple[list[_Parts], list[_Parts], list[_Parts]]:
    """Return the formulas' functions, those with 0, 1 and 2 states of a value, each once."""
    found: tuple[list[_Parts], list[_Parts], list[_Parts]] = ([], [], [])
    for rule in RULES.values():
        for formula in rule.formulas:
            known = found[0 if formula.row_rate else len(rule.columns)]
            parts = formula.update, formula.row_rate
            if parts not in known:
                known.append(parts)
    found[0].sort(key=lambda parts: parts[1] is not None)
    return found


_UPDATES = _parts_by_states()
_FIRSTS = (0, len(_UPDATES[0]), len(_UPDATES[0]) + len(_UPDATES[1]))
"""The numbers of the first formulas with 0, 1 and 2 states of a value."""

_NUMBER_OF = {
    parts: number for number, parts in enumerate(_UPDATES[0] + _UPDATES[1] + _UPDATES[2])
}

FIRST_OF_ONE, FIRST_OF_TWO = _FIRSTS[1:]
LAZY_ADAM = _NUMBER_OF[LAZY.update, None]


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
        _NUMBER_OF[formula.update, formula.row_rate],
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
    """Return what steps by the formulas with so many states of a value."""
    *numbered, (_, last) = enumerate(_UPDATES[num_states], _FIRSTS[num_states])
    choose = inlined(last[0])
    for number, (update, _row_rate) in reversed(numbered):
        choose = _chosen(number, inlined(update), choose)

    @merged
    def move(step: Any, value: Any, states: Any, grad: Any) -> Any:
        """Return the new value and states."""
        return choose(step, value, states, grad, (square_root, cut))

    return move


_no_state, _one_state, _two_states = _any_of(0), _any_of(1), _any_of(2)


@inlined
def _same_rate(step: Step, _states: Any, _place: Any, _mean_square: Any) -> Any:
    return step.rate


def _rated(number: int, row_rate: Any, otherwise: Any) -> Any:
    @inlined
    def rate_of(step: Step, states: Any, place: Any, mean_square: Any) -> Any:
        """Step the state of a row, and return the row's rate."""
        if step.rule == number:
            functions = (square_root, cut)
            rate, state = row_rate(step, load_float(states, place), mean_square, functions)
            store_float(states, place, state)
        else:
            rate = otherwise(step, states, place, mean_square)
        return rate

    return rate_of


_row_rate = _same_rate
for _number, (_, _function) in enumerate(_UPDATES[0]):
    if _function is not None:
        _row_rate = _rated(_number, inlined(_function), _row_rate)

_FIRST_BY_ROW = next(number for number, (_, function) in enumerate(_UPDATES[0]) if function)
"""Formulas with a row's state are the last ones of those without a value's."""


@inlined
def _mean_square(grads: Any, start: Any, count: Any) -> Any:
    """Return the mean square of ``count`` gradients, summed lane by lane."""
    whole = count - count % LANES
    total = np.float32(0.0)
    if whole > 0:
        first = load_lanes(grads, start)
        lanes = first * first
        for j in range(LANES, whole, LANES):
            more = load_lanes(grads, start + j)
            lanes = lanes + more * more
        total = folded(lanes)
    for j in range(whole, count):
        number = load_float(grads, start + j)
        total += number * number
    return total / np.float32(count)


@uncounted
def _rate_of_row(
    step: Step, states: NDArray[np.float32], grads: NDArray[Any], at: tuple[int, int, int]
) -> Any:
    """Step the state that a row has as a whole, and return the row's rate.

    A function of its own: the loops of rules without such a state need its registers. ``at`` =
    (state, gradient, how many gradients).
    """
    place, start, count = at
    return _row_rate(step, states, place, _mean_square(grads, start, count))


@inlined
def _of_row(step: Step, arrays: Any, at: Any, count: Any) -> Step:
    """Return the step of a row's values, and step the state that the row has as a whole."""
    rule, rate, decay, constants, salt = step
    if _FIRST_BY_ROW <= rule < FIRST_OF_ONE:
        _values, states, grads = arrays
        # Of one type, whether a number is known or not: each is compiled for.
        where: Any = (np.int64(at[1]), np.int64(at[3]), np.int64(count))
        number: Any = np.int64(rule)
        by = Step(number, rate, decay, constants, salt)
        rate = _rate_of_row(by, states, grads, where)
    return Step(rule, rate, decay, constants, salt)


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
    step = _of_row(step, arrays, at, count)
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
    step = _of_row(step, arrays, at, LINE_LANES)
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
