"""A rule's record is all that is said of it."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.kernels.basics.lanes import LANES
from paramfleet_shared.tables.kernels.stepping.rules import Step, step_of
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.states import check_rows
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Formula
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
    TableSpecError,
)

START = InitializerSpec(kind="normal", std=0.5)
FIRST_WIRE: dict[str, Any] = {
    "momentum": 0.9,
    "dampening": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "lr_decay": 0.0,
    "initial_accumulator_value": 0.0,
    "eps": 1e-8,
    "beta1": 0.9,
    "beta2": 0.999,
}
CASES: dict[str, OptimizerSpec] = {
    **{name: OptimizerSpec(rule=name) for name, rule in RULES.items() if rule.formulas},
    "nesterov": OptimizerSpec(rule="momentum", nesterov=True),
    "ftrl, every setting": OptimizerSpec(rule="ftrl", beta=0.1, l1=0.5, l2=0.2),
}


class Pushed(NamedTuple):
    """A value and its states, before and after a step."""

    values: NDArray[np.float32]
    states: tuple[NDArray[np.float32], ...]


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad", "adam", "sum"])
def test_the_first_rules_have_the_wire_that_they_always_had(rule: str) -> None:
    assert list(OptimizerSpec(rule=rule).to_wire().items()) == [
        ("rule", rule),
        *FIRST_WIRE.items(),
    ]
    some = {**FIRST_WIRE, "eps": 1e-3, "lr_decay": 0.5}
    assert OptimizerSpec(rule=rule, **some).to_wire() == {"rule": rule, **some}


@pytest.mark.parametrize("case", CASES)
def test_a_spec_comes_back_from_its_wire(case: str) -> None:
    spec = TableSpec(name="t", kind="sparse", optimizer=CASES[case])

    again = TableSpec.from_wire(spec.to_wire())

    assert again == spec
    assert hash(again) == hash(spec)
    assert repr(again.optimizer).startswith(f"OptimizerSpec(rule='{spec.optimizer.rule}', ")


def test_a_constant_of_no_rule_is_refused() -> None:
    wire = TableSpec(name="t", kind="dense").to_wire()
    wire["optimizer"]["warmth"] = 1.0

    message = "is malformed: .* unexpected keyword argument 'warmth'"
    with pytest.raises(TableSpecError, match=message):
        TableSpec.from_wire(wire)


def stepped(step: Step, formula: Formula, before: Pushed, grads: Any) -> Pushed:
    """Step by a record's formula in numpy, which rounds as the kernels do."""
    with np.errstate(over="ignore"):  # FTRL's infinities are cut
        return computed(step, formula, before, grads)


def computed(step: Step, formula: Formula, before: Pushed, grads: Any) -> Pushed:
    """Return what a record's formula makes of ``before``."""

    def cut(numbers: Any, limit: Any) -> Any:
        return np.clip(numbers, -limit, limit)

    if formula.row_rate is None:
        return Pushed(*formula.update(step, *before, grads, (np.sqrt, cut)))
    square = mean_square(grads)
    rate, state = formula.row_rate(step, before.states[0], square, (np.sqrt, cut))
    by_row = step._replace(rate=rate)
    values, _ = formula.update(by_row, before.values, (), grads, (np.sqrt, cut))
    return Pushed(values, (state,))


def mean_square(grads: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return each row's mean square [n, 1], summed in the kernels' order."""
    squares = grads * grads
    num, dim = squares.shape
    total = np.zeros(num, np.float32)
    whole = dim - dim % LANES
    if whole:
        lanes = np.zeros((num, LANES), np.float32)
        for start in range(0, whole, LANES):
            lanes = lanes + squares[:, start : start + LANES]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
        total = lanes[:, 0]
    for column in range(whole, dim):
        total = total + squares[:, column]
    found: NDArray[np.float32] = (total / np.float32(dim))[:, np.newaxis]
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_dense_kernel_computes_the_record_s_formula_to_the_bit(case: str) -> None:
    rule = CASES[case]
    part = DenseRange(
        TableSpec(name="d", kind="dense", size=45, initializer=START, optimizer=rule), 0, 45
    )
    formula = rule.record.formulas[rule.record.choose(rule.constants, False)]
    dice = np.random.default_rng(5)

    for number in range(1, 6):
        grads = dice.standard_normal(45, np.float32)
        before = Pushed(part.values.copy(), tuple(part.states.copy()))
        step = step_of(rule, sparse=False, lr=0.3, step=number, first=number == 1)
        part.push(grads, lr=0.3, step=number)
        after = stepped(step, formula, before, grads)
        np.testing.assert_array_equal(part.values, after.values)
        for states, expected in zip(part.states, after.states, strict=True):
            np.testing.assert_array_equal(states, expected)


@pytest.mark.parametrize("dim", [3, 16, 21])
@pytest.mark.parametrize("case", CASES)
def test_a_sparse_kernel_computes_the_record_s_formula_to_the_bit(case: str, dim: int) -> None:
    rule = CASES[case]
    shard = SparseShard(
        TableSpec(name="s", kind="sparse", dim=dim, initializer=START, optimizer=rule),
        max_rows=9,
    )
    formula = rule.record.formulas[rule.record.choose(rule.constants, True)]
    ids, dice = np.arange(9), np.random.default_rng(6)
    shard.pull(ids, np.empty((9, dim), np.float32), create=True)

    for number in range(1, 6):
        grads = dice.standard_normal((9, dim), np.float32)
        _, values, states = shard.export(0, 9)
        spans = RowLayout.of_states(rule, dim).spans.values()
        before = Pushed(values, tuple(states[:, span] for span in spans))
        step = step_of(rule, sparse=True, lr=0.3, step=number)
        shard.push(ids, grads, lr=0.3, step=number, unique=number % 2 == 0)
        after = stepped(step, formula, before, grads)
        _, values, states = shard.export(0, 9)
        np.testing.assert_array_equal(values, after.values)
        for span, expected in zip(spans, after.states, strict=True):
            np.testing.assert_array_equal(states[:, span], expected)


def test_a_row_of_row_wise_adagrad_has_one_number_of_state() -> None:
    optimizer = OptimizerSpec(rule="rowwise_adagrad", initial_accumulator_value=0.5)
    spec = TableSpec(name="s", kind="sparse", dim=64, optimizer=optimizer)
    shard = SparseShard(spec, max_rows=4)
    shard.pull(np.arange(4), np.empty((4, 64), np.float32), create=True)

    _, values, states = shard.export(0, 4)
    before = shard.num_bytes
    shard.assign(np.arange(4), values, states + 1)

    assert states.tolist() == [[0.5]] * 4
    assert shard.export(1, 2)[2].tolist() == [[1.5]] * 2
    assert shard.num_bytes == before
    assert check_rows(optimizer, values, states) is None
    assert check_rows(optimizer, values, -states) is not None
