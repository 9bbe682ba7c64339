"""Stepping rows that have an accessor (``rules.ctr.accessor``): counts, two parts, growing.

Rows are floats of one flat array. All arithmetic of a rule is float64, rounded when it is
kept; scores are float32, as Fleet's are.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import called, inlined, uncounted
from paramfleet_shared.tables.kernels.firsts import Firsts, fill_columns
from paramfleet_shared.tables.kernels.rows import AHEAD, prefetch_row
from paramfleet_shared.tables.rules.ctr.accessor import NUM_COUNTS, NUM_SHORT, PARTS
from paramfleet_shared.tables.rules.ctr.catalog import PART_RULES
from paramfleet_shared.tables.rules.ctr.record import PartRule
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = [
    "CtrLayout",
    "CtrStep",
    "CtrTable",
    "add_ctr_rows",
    "ctr_step_of",
    "expiry_limits_of",
    "scoring_of",
    "step_ctr_rows",
    "weigh_ctr_rows",
]


class PartNumbers(NamedTuple):
    """What a rule steps a part of a row with."""

    rule: int
    """Its number among ``PART_RULES``."""
    is_scaled: bool
    """Whether gradients are divided by the shows of the step."""
    rate: float
    least: float
    most: float
    constants: tuple[float, float, float]


class CtrStep(NamedTuple):
    """One step of rows with an accessor."""

    embed: PartNumbers
    embedx: PartNumbers
    scoring: "Scoring"
    threshold: np.float32
    """The score at which a row grows."""
    day: int
    """Of the step, from 1970; 0 for none."""


class Scoring(NamedTuple):
    """What a row's counts are worth, and how they fade."""

    nonclk_coeff: np.float32
    click_coeff: np.float32
    decay_rate: float
    """Of a day."""


class CtrTable(NamedTuple):
    """The rows of a table with an accessor."""

    firsts: Firsts
    """The initializer."""
    floats: NDArray[np.float32]
    """Flat, row by row."""
    layout: "CtrLayout"


class CtrLayout(NamedTuple):
    """Where in a row its numbers are, in floats."""

    dim: int
    """Numbers of a value."""
    pitch: int
    """From row to row."""
    embed: tuple[int, int]
    """Where the states of the first part's weights begin, and those of the part."""
    embedx: tuple[int, int]
    delta_score: int
    seen_day: int
    is_extended: int


def scoring_of(spec: OptimizerSpec) -> Scoring:
    """Return how a table with an accessor scores its rows."""
    constants = spec.constants
    return Scoring(
        np.float32(constants["nonclk_coeff"]),
        np.float32(constants["click_coeff"]),
        float(constants["show_click_decay_rate"]),
    )


def expiry_limits_of(spec: OptimizerSpec) -> tuple[np.float32, int]:
    """Return the least score of a row that stays, and the days for which it may be unseen."""
    constants = spec.constants
    days = int(constants["delete_after_unseen_days"])
    return np.float32(constants["delete_threshold"]), days


@lru_cache(maxsize=16)
def ctr_step_of(spec: OptimizerSpec, *, lr: float, day: int = 0) -> CtrStep:
    """Return a step of a table with an accessor.

    Args:
        spec: Its rule, ``ctr``.
        lr: Learning rate of this step; of parts that follow it.
        day: Of the step, from 1970; 0 for none.
    """
    constants = spec.constants
    names = list(PART_RULES)

    def numbers_of(part: str) -> PartNumbers:
        name = constants[f"{part}_rule"]
        rule = PART_RULES[name]
        rate = lr if constants[f"{part}_scheduled"] else constants[f"{part}_learning_rate"]
        first, second, third = rule.numbers(constants, part)
        return PartNumbers(
            names.index(name),
            rule.per_show and bool(constants["show_scale"]),
            float(rate),
            float(constants[f"{part}_min_bound"]),
            float(constants[f"{part}_max_bound"]),
            (first, second, third),
        )

    embed, embedx = (numbers_of(part) for part in PARTS)
    threshold = np.float32(constants["embedx_threshold"])
    return CtrStep(embed, embedx, scoring_of(spec), threshold, day)


@inlined
def _load_none(_floats: Any, _start: Any, _pitch: Any) -> Any:
    return ()


@inlined
def _load_one(floats: Any, start: Any, _pitch: Any) -> Any:
    return (np.float64(floats[start]),)


@inlined
def _load_two(floats: Any, start: Any, pitch: Any) -> Any:
    return np.float64(floats[start]), np.float64(floats[start + pitch])


@inlined
def _load_four(floats: Any, start: Any, pitch: Any) -> Any:
    return (
        np.float64(floats[start]),
        np.float64(floats[start + pitch]),
        np.float64(floats[start + 2 * pitch]),
        np.float64(floats[start + 3 * pitch]),
    )


@inlined
def _store_none(_floats: Any, _start: Any, _pitch: Any, _states: Any) -> None:
    return None


@inlined
def _store_one(floats: Any, start: Any, _pitch: Any, states: Any) -> None:
    floats[start] = states[0]


@inlined
def _store_two(floats: Any, start: Any, pitch: Any, states: Any) -> None:
    floats[start] = states[0]
    floats[start + pitch] = states[1]


@inlined
def _store_four(floats: Any, start: Any, pitch: Any, states: Any) -> None:
    floats[start] = states[0]
    floats[start + pitch] = states[1]
    floats[start + 2 * pitch] = states[2]
    floats[start + 3 * pitch] = states[3]


_MOVES = {
    0: (_load_none, _store_none),
    1: (_load_one, _store_one),
    2: (_load_two, _store_two),
    4: (_load_four, _store_four),
}
"""What loads and stores so many states, ``pitch`` floats apart. A loop couldn't: it would need
tuples of a length that is known only when it runs."""


@inlined
def _within(value: Any, numbers: PartNumbers) -> Any:
    return min(max(value, numbers.least), numbers.most)


def _stepping(rule: PartRule) -> Any:
    """Return what steps a part of a row by a rule."""
    load_weight, store_weight = _MOVES[len(rule.of_weights)]
    load_part, store_part = _MOVES[len(rule.of_part)]
    begin, update = inlined(rule.begin), inlined(rule.update)

    @called
    def step(
        numbers: PartNumbers, floats: Any, at: Any, grads: Any, first: Any, shape: Any
    ) -> None:
        """Step ``count`` weights; ``at`` = (value, weights' states, the part's states).

        ``shape`` = (count, by what gradients are divided).
        """
        value, own, whole = at
        count, divisor = shape
        total, squares = 0.0, 0.0
        for j in range(count):
            grad = np.float64(grads[first + j]) / divisor
            total += grad
            squares += grad * grad
        before = load_part(floats, whole, 1)
        shared, after = begin(numbers, before, total / count, squares / count)
        store_part(floats, whole, 1, after)
        for j in range(count):
            grad = np.float64(grads[first + j]) / divisor
            weight = np.float64(floats[value + j])
            states = load_weight(floats, own + j, count)
            moved, stepped = update(numbers, weight, states, grad, shared)
            floats[value + j] = _within(moved, numbers)
            store_weight(floats, own + j, count, stepped)

    return step


_NAIVE, _ADAGRAD, _STD_ADAGRAD, _ADAM, _SHARED_ADAM, _ADAGRAD_V2 = map(
    _stepping, PART_RULES.values()
)


@uncounted
def _step_part(
    numbers: PartNumbers,
    floats: NDArray[np.float32],
    at: tuple[int, int, int],
    grads: NDArray[np.float32],
    first: int,
    shape: tuple[int, float],
) -> None:
    """Step a part of a row by the rule that its numbers name."""
    rule = numbers.rule
    if rule == 0:
        _NAIVE(numbers, floats, at, grads, first, shape)
    elif rule == 1:
        _ADAGRAD(numbers, floats, at, grads, first, shape)
    elif rule == 2:
        _STD_ADAGRAD(numbers, floats, at, grads, first, shape)
    elif rule == 3:
        _ADAM(numbers, floats, at, grads, first, shape)
    elif rule == 4:
        _SHARED_ADAM(numbers, floats, at, grads, first, shape)
    else:
        _ADAGRAD_V2(numbers, floats, at, grads, first, shape)


@inlined
def _score(scoring: Scoring, show: Any, click: Any) -> Any:
    return (show - click) * scoring.nonclk_coeff + click * scoring.click_coeff


@inlined
def _faded(scoring: Scoring, seen: Any, day: Any) -> Any:
    """Return what is left of counts of a day, on another one."""
    days = day - np.int64(seen)
    if seen == 0 or days <= 0:
        return np.float32(1.0)
    return np.float32(scoring.decay_rate**days)


@uncounted
def _step_row(
    step: CtrStep,
    floats: NDArray[np.float32],
    row: int,
    grads: NDArray[np.float32],
    first: int,
    layout: CtrLayout,
) -> bool:
    """Step a row with what is pushed from ``first`` on; return whether it is to grow now."""
    show, click = grads[first], grads[first + 1]
    seen = floats[row + layout.seen_day]
    left = _faded(step.scoring, seen, step.day)
    floats[row] = floats[row] * left + show
    floats[row + 1] = floats[row + 1] * left + click
    floats[row + layout.delta_score] += _score(step.scoring, show, click)
    floats[row + layout.seen_day] = max(seen, np.float32(step.day))
    shows = np.float64(show)
    for_embed = shows if step.embed.is_scaled else 1.0
    at = (row + NUM_COUNTS, row + layout.embed[0], row + layout.embed[1])
    _step_part(step.embed, floats, at, grads, first + NUM_COUNTS, (1, for_embed))
    num = layout.dim - NUM_SHORT
    if num == 0:
        return False
    if floats[row + layout.is_extended] != 0:
        for_embedx = shows if step.embedx.is_scaled else 1.0
        at = (row + NUM_SHORT, row + layout.embedx[0], row + layout.embedx[1])
        _step_part(step.embedx, floats, at, grads, first + NUM_SHORT, (num, for_embedx))
        return False
    score: Any = _score(step.scoring, floats[row], floats[row + 1])
    return score >= step.threshold  # type: ignore[no-any-return]  # a kernel's bool


@uncounted
def step_ctr_rows(
    step: CtrStep,
    table: CtrTable,
    slots: NDArray[np.int64],
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
) -> None:
    """Step the row at each slot, each once, with what is pushed for it.

    A row that grows gets the first values of its embedx: they learn from the next step on.

    Args:
        step: Its numbers.
        table: The rows.
        slots: Where they are.
        keys: Their ids.
        grads: Flat, ``dim`` floats a row: shows, clicks and gradients.
    """
    firsts, floats, layout = table
    dim, pitch = layout.dim, layout.pitch
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(floats, slots[i + AHEAD] * pitch, pitch)
        row = slots[i] * pitch
        if _step_row(step, floats, row, grads, i * dim, layout):
            floats[row + layout.is_extended] = np.float32(1.0)
            fill_columns(firsts, keys[i], floats, row, (NUM_SHORT, dim))


@uncounted
def add_ctr_rows(
    step: CtrStep,
    table: CtrTable,
    slots: NDArray[np.int64],
    keys: NDArray[np.uint64],
    deltas: NDArray[np.float32],
    has_grown: NDArray[np.bool_],
) -> None:
    """Add what a worker has counted and learned itself to the row at each slot, each once.

    A row grows before its embedx is added to: where the worker's copy has grown, or where its
    score is high enough now. So a copy that grew at the same score begins as this row does.

    Args:
        step: Its day, threshold and bounds; no rule is run.
        table: The rows.
        slots: Where they are.
        keys: Their ids.
        deltas: Flat, ``dim`` floats a row: shows, clicks and differences.
        has_grown: Whether each copy has its embedx.
    """
    firsts, floats, layout = table
    dim, pitch = layout.dim, layout.pitch
    embed, embedx = step.embed, step.embedx
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(floats, slots[i + AHEAD] * pitch, pitch)
        row, first = slots[i] * pitch, i * dim
        show, click = deltas[first], deltas[first + 1]
        if show > 0:
            seen = floats[row + layout.seen_day]
            left = _faded(step.scoring, seen, step.day)
            floats[row] = floats[row] * left + show
            floats[row + 1] = floats[row + 1] * left + click
            floats[row + layout.delta_score] += _score(step.scoring, show, click)
            floats[row + layout.seen_day] = max(seen, np.float32(step.day))
        value = np.float64(floats[row + NUM_COUNTS]) + np.float64(deltas[first + NUM_COUNTS])
        floats[row + NUM_COUNTS] = _within(value, embed)
        if dim == NUM_SHORT:
            continue
        if floats[row + layout.is_extended] == 0:
            score: Any = _score(step.scoring, floats[row], floats[row + 1])
            if not has_grown[i] and score < step.threshold:
                continue
            floats[row + layout.is_extended] = np.float32(1.0)
            fill_columns(firsts, keys[i], floats, row, (NUM_SHORT, dim))
        for j in range(NUM_SHORT, dim):
            value = np.float64(floats[row + j]) + np.float64(deltas[first + j])
            floats[row + j] = _within(value, embedx)


@uncounted
def weigh_ctr_rows(
    scoring: Scoring,
    table: CtrTable,
    slots: NDArray[np.int64],
    day: int,
    limits: tuple[np.float32, int],
    weighed: tuple[NDArray[np.float32], NDArray[np.bool_]],
) -> None:
    """Say of the row at each slot what its score is on a day, and whether it has expired.

    Args:
        scoring: Of the table.
        table: The rows.
        slots: Where they are.
        day: From 1970; 0 for none.
        limits: (the least score that stays, the days for which a row may be unseen).
        weighed: (scores [n], expired [n]); filled.
    """
    _firsts, floats, layout = table
    scores, expired = weighed
    for i in range(slots.size):
        row = slots[i] * layout.pitch
        seen = floats[row + layout.seen_day]
        left = _faded(scoring, seen, day)
        scores[i] = _score(scoring, floats[row] * left, floats[row + 1] * left)
        expired[i] = scores[i] < limits[0]
        if seen > 0 and day - np.int64(seen) > limits[1]:
            expired[i] = True
