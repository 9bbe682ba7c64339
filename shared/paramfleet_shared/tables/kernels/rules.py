"""The optimizers' formulas, as pure functions of vectors or floats.

Each takes a value, its state and its gradient, and returns the new ones.
The order of operations is torch's (``torch/optim/{sgd,adagrad,adam,_functional}.py``),
so that results agree to rounding.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.bounds import LARGEST_GRADIENT
from paramfleet_shared.tables.kernels.compiled import inlined, kernel
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

SUM, SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM, LAZY_ADAM = range(7)

_NO_DECAY = np.float32(0.0)
_LARGEST = np.float32(LARGEST_GRADIENT)


class Step(NamedTuple):
    """One step of a rule: its formula, and its numbers in float32, 0 where it has none.

    Scalars, not an array: they stay in registers.
    """

    rule: int
    rate: np.float32
    weight_decay: np.float32
    eps: np.float32
    keep: np.float32
    """What stays of the momentum, or of Adam's squares."""
    take: np.float32
    """How much of the gradient the momentum takes, or of its square Adam."""
    take_mean: np.float32
    """How far Adam's mean moves to the gradient."""
    correction: np.float32
    """What Adam's root is divided by."""
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
    rule = {"sum": SUM, "sgd": SGD, "momentum": MOMENTUM, "adagrad": ADAGRAD, "adam": ADAM}[
        spec.rule
    ]
    rate, keep, take, take_mean, correction = lr, 0.0, 0.0, 0.0, 0.0
    if spec.rule == "momentum":
        rule = NESTEROV if spec.nesterov else MOMENTUM
        keep, take = spec.momentum, 1.0 if first else 1.0 - spec.dampening
    elif spec.rule == "adagrad":
        rate = lr / (1.0 + (step - 1) * spec.lr_decay)
    elif spec.rule == "adam":
        rule = LAZY_ADAM if sparse else ADAM
        keep, take, take_mean = spec.beta2, 1.0 - spec.beta2, 1.0 - spec.beta1
        correction = math.sqrt(1.0 - spec.beta2**step)
        rate = lr / (1.0 - spec.beta1**step) * (correction if sparse else 1.0)
    numbers = (rate, spec.weight_decay, spec.eps, keep, take, take_mean, correction)
    floats = [np.float32(number) for number in numbers]
    return Step._make((rule, *floats, np.uint64(0)))


@inlined
def _one_state(step: Step, value: Any, state: Any, grad: Any) -> Any:
    """Return the new value and state of a rule with one state column."""
    if step.rule == ADAGRAD:
        total = state + grad * grad
        return value - grad * step.rate / (square_root(total) + step.eps), total
    buffer = state * step.keep + grad * step.take
    if step.rule == NESTEROV:
        return value - (grad + buffer * step.keep) * step.rate, buffer
    return value - buffer * step.rate, buffer


@inlined
def _two_states(step: Step, value: Any, states: Any, grad: Any) -> Any:
    """Return the new value and states of a rule with two state columns."""
    mean = states[0] + (grad - states[0]) * step.take_mean
    if step.rule == LAZY_ADAM:
        square = states[1] + (grad * grad - states[1]) * step.take
        return value - mean * step.rate / (square_root(square) + step.eps), mean, square
    square = states[1] * step.keep + grad * grad * step.take
    root = square_root(square) / step.correction
    return value - mean * step.rate / (root + step.eps), mean, square


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
    if step.rule == SUM:
        round_off(values, at[0], value + grad, noise, column)
    elif step.rule == SGD:
        round_off(values, at[0], value - grad * step.rate, noise, column)
    elif step.rule in (MOMENTUM, NESTEROV, ADAGRAD):
        value, state = _one_state(step, value, take(states, at[1]), grad)
        round_off(values, at[0], value, noise, column)
        put(states, at[1], state)
    else:
        both = take(states, at[1]), take(states, at[2])
        value, state, second = _two_states(step, value, both, grad)
        round_off(values, at[0], value, noise, column)
        put(states, at[1], state)
        put(states, at[2], second)


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
    _, rate, _, eps, keep, take, take_mean, correction, salt = step
    return Step(LAZY_ADAM, rate, _NO_DECAY, eps, keep, take, take_mean, correction, salt)


@inlined
def _undecayed(step: Step) -> Step:
    """Return a step without weight decay, of which the compiler knows that."""
    rule, rate, _, eps, keep, take, take_mean, correction, salt = step
    return Step(rule, rate, _NO_DECAY, eps, keep, take, take_mean, correction, salt)


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
