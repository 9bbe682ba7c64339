"""Finite numbers in, finite numbers out: no rule makes an infinity or NaN of what is taken."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.encoding import encode_rows, is_finite, num_nonfinite
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.routing import all_finite
from paramfleet_shared.tables.rows.states import check_states
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
    TableSpecError,
)
from paramfleet_shared.values.bounds import GRADIENT_LOG2, MAX_LEARNING_RATE

LARGEST = float(np.nextafter(np.float32(2.0**GRADIENT_LOG2), np.float32(0)))
RULES: dict[str, dict[str, Any]] = {
    "sum": {},
    "sgd": {},
    "momentum": {"momentum": 1.0, "dampening": 0.0},
    "adagrad": {"eps": 1e-30},
    "adam": {"eps": 1e-30, "beta1": 0.9, "beta2": 0.999},
    "adamw": {"eps": 1e-30, "beta1": 0.9, "beta2": 0.999},
    "rowwise_adagrad": {"eps": 1e-30},
    "ftrl": {"beta": 1e-6, "l1": 1e6},
}

edges = st.sampled_from([0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e10, LARGEST])
magnitudes = edges | st.floats(0.0, LARGEST, width=32)
gradients = st.builds(lambda size, sign: size * sign, magnitudes, st.sampled_from([-1.0, 1.0]))
rates = st.sampled_from([0.0, 1e-30, 1.0, MAX_LEARNING_RATE]) | st.floats(0.0, 1.0)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(gradients, rates), min_size=1, max_size=12),
    decay=st.sampled_from([0.0, 1e-4, 1e6]),
    first=st.sampled_from([0.0, 1.0, -3.4e38, 3.4e38]),
)
def test_no_rule_makes_an_infinity_of_finite_gradients(
    rule: str, steps: list[tuple[float, float]], decay: float, first: float
) -> None:
    plain = OptimizerSpec(rule=rule, **RULES[rule])
    has_decay = "weight_decay" in plain.constants
    decays: dict[str, Any] = {"weight_decay": decay} if has_decay else {}
    optimizer = OptimizerSpec(rule=rule, **RULES[rule], **decays)
    dense = DenseRange(TableSpec(name="d", kind="dense", size=9, optimizer=optimizer), 0, 9)
    dense.assign(np.full(9, first, np.float32))
    shard = SparseShard(TableSpec(name="s", kind="sparse", dim=9, optimizer=plain), max_rows=4)
    ids = np.array([7], np.int64)
    shard.assign(
        ids,
        np.full((1, 9), first, np.float32),
        np.zeros((1, RowLayout.of_states(plain, 9).pitch), np.float32),
    )
    for step, (gradient, rate) in enumerate(steps, 1):
        dense.push(np.full(9, gradient, np.float32), lr=rate, step=step)
        shard.push(ids, np.full((1, 9), gradient, np.float32), lr=rate, step=step, unique=True)
    _, values, states = shard.export(0, 1)
    for numbers in (dense.values, dense.states, values, states):
        assert np.isfinite(numbers).all()


@pytest.mark.parametrize("rule", ["adagrad", "momentum", "adam"])
def test_the_largest_gradient_for_ever_leaves_every_state_finite(rule: str) -> None:
    optimizer = OptimizerSpec(rule=rule, **RULES[rule])
    dense = DenseRange(TableSpec(name="d", kind="dense", size=8, optimizer=optimizer), 0, 8)
    # What thousands of millions of such steps add up to: float32 grows no further.
    if rule == "adagrad":
        dense.states[:] = 2.0 ** (2 * GRADIENT_LOG2 + 25)
    for step in range(1, 50):
        dense.push(np.full(8, LARGEST, np.float32), lr=MAX_LEARNING_RATE, step=step)
    assert np.isfinite(dense.values).all()
    assert np.isfinite(dense.states).all()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        (field, wrong)
        for field in (
            "momentum", "dampening", "weight_decay", "lr_decay", "initial_accumulator_value",
            "eps", "beta1", "beta2",
        )
        for wrong in (math.nan, math.inf, -math.inf, -1.0, 1e39, "1", None, True)
    ],
)  # fmt: skip
def test_a_number_of_a_rule_outside_its_range_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(TableSpecError) as caught:
        OptimizerSpec(**{field: wrong})
    assert caught.value.field == f"optimizer.{field}"


@pytest.mark.parametrize("field", ["value", "low", "high", "mean", "std"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e39, "1", True])
def test_a_number_of_an_initializer_that_is_no_finite_float32_is_refused(
    field: str, wrong: Any
) -> None:
    with pytest.raises(TableSpecError) as caught:
        InitializerSpec(**{field: wrong})
    assert caught.value.field == f"initializer.{field}"


def test_an_eps_of_zero_is_refused_because_a_zero_gradient_would_make_nan() -> None:
    with pytest.raises(TableSpecError) as caught:
        OptimizerSpec(rule="adam", eps=0.0)
    assert "1e-30" in str(caught.value)


def test_a_small_eps_needs_squares_that_outlive_the_mean() -> None:
    OptimizerSpec(rule="adam", eps=1e-12, beta1=0.9, beta2=0.999)
    OptimizerSpec(rule="adam", eps=1e-8, beta1=0.9, beta2=0.5)
    with pytest.raises(TableSpecError) as caught:
        OptimizerSpec(rule="adam", eps=1e-12, beta1=0.9, beta2=0.5)
    assert caught.value.field == "optimizer.eps"


@given(exponent=st.integers(-20, 127), size=st.integers(1, 70), at=st.integers(0, 69))
@settings(max_examples=100, deadline=None)
def test_numbers_are_compared_with_a_power_of_two_exactly(
    exponent: int, size: int, at: int
) -> None:
    numbers = np.zeros(size, np.float32)
    numbers[at % size] = -(2.0**exponent)
    assert not all_finite(numbers, log2=exponent)
    assert all_finite(numbers, log2=exponent + 1)
    numbers[at % size] = np.nextafter(np.float32(2.0**exponent), np.float32(0))
    assert all_finite(numbers, log2=exponent)


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16", "int8", "float8_e4m3"])
@pytest.mark.parametrize("log2", [10, 14, 51])
def test_encoded_numbers_are_compared_with_a_power_of_two_too(wire: Any, log2: int) -> None:
    small = encode_rows(np.full((3, 4), 2.0 ** (log2 - 2), np.float32), wire)
    assert is_finite(small, wire, log2=log2)
    assert num_nonfinite(small, wire, log2=log2) == 0
    large = encode_rows(np.full((3, 4), 2.0 ** (log2 + 1), np.float32), wire)
    held = 2.0 ** (log2 + 1) <= {"float16": 65504, "int8": 1.6e9}.get(wire, 3e38)
    assert is_finite(large, wire, log2=log2) is not held
    assert (num_nonfinite(large, wire, log2=log2) > 0) is held


@pytest.mark.parametrize(
    ("rule", "column", "number", "rightly"),
    [
        ("adam", 1, -1e-3, False),  # the square root of it is NaN
        ("adam", 0, -1e-3, True),
        ("adam", 0, math.inf, False),
        ("adam", 0, 1e30, False),
        ("adam", 1, math.nan, False),
        ("adagrad", 0, -1.0, False),
        ("adagrad", 0, 1e30, True),
        ("momentum", 0, 1e30, False),
        ("rowwise_adagrad", 0, -1.0, False),
        ("ftrl", 0, 1e7, False),
        ("ftrl", 0, -1.0, True),
        ("ftrl", 1, -1.0, False),
        ("momentum", 0, -5.0, True),
    ],
)
def test_states_that_no_training_can_have_made_are_told_from_others(
    rule: Any, column: int, number: float, rightly: bool
) -> None:
    optimizer = OptimizerSpec(rule=rule)
    states = np.zeros((optimizer.num_state_columns, 6), np.float32)
    states[column, 3] = number
    assert (check_states(optimizer, states) is None) is rightly
