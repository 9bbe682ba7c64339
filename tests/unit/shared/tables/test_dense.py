"""A contiguous part of a dense vector."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.tables.dense import PIECE_VALUES, DenseRange
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec


def vector(rule: Any = "adam", **optimizer: Any) -> TableSpec:
    return TableSpec(
        name="w",
        kind="dense",
        size=100,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        optimizer=OptimizerSpec(rule=rule, **optimizer),
    )


def numbers(size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


@pytest.mark.parametrize("rule", ["sum", "sgd", "momentum", "adagrad", "adam"])
def test_parts_together_step_as_the_whole_does(rule: str) -> None:
    whole = DenseRange(vector(rule), 0, 100)
    parts = [DenseRange(vector(rule), a, b) for a, b in ((0, 33), (33, 33), (33, 100))]
    assert not np.array_equal(whole.values[:33], whole.values[33:66])

    for step in (1, 2, 3):
        grads = numbers(100, step)
        whole.push(grads, lr=0.1, step=step)
        for part in parts:
            part.push(grads[part.start : part.stop], lr=0.1, step=step)

    np.testing.assert_array_equal(np.concatenate([p.values for p in parts]), whole.values)
    np.testing.assert_array_equal(
        np.concatenate([p.states for p in parts], axis=1), whole.states
    )


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "adam"])
def test_assigned_values_and_states_go_on_as_if_nothing_had_happened(rule: str) -> None:
    dampening = {"dampening": 0.5} if rule == "momentum" else {}
    here, there = (DenseRange(vector(rule, **dampening), 0, 100) for _ in range(2))
    here.push(numbers(100), lr=0.1, step=1)

    there.assign(here.values, here.states)
    for part in (here, there):
        part.push(numbers(100, 1), lr=0.1, step=2)

    np.testing.assert_array_equal(here.values, there.values)


def test_assigning_values_alone_keeps_the_state() -> None:
    part = DenseRange(vector("adagrad"), 0, 100)
    part.push(numbers(100), lr=0.1, step=1)
    states = part.states.copy()

    part.assign(np.zeros(100, np.float32))

    np.testing.assert_array_equal(part.states, states)
    assert not part.values.any()


def test_deltas_are_added_past_the_optimizer() -> None:
    part = DenseRange(vector("adam"), 10, 20)
    before = part.values.copy()

    part.add(np.ones(10, np.float32))

    np.testing.assert_array_equal(part.values, before + 1)
    assert not part.states.any()
    assert part.num_bytes == 3 * 10 * 4


def test_arrays_of_another_length_or_type_are_refused_and_change_nothing() -> None:
    part = DenseRange(vector("adam"), 0, 10)
    before = part.values.copy()

    with pytest.raises(RowShapeError):
        part.push(numbers(11), lr=0.1, step=1)
    with pytest.raises(RowShapeError):
        part.add(numbers(10).astype(np.float64))
    with pytest.raises(RowShapeError):
        part.assign(numbers(10), numbers(10).reshape(1, 10))

    np.testing.assert_array_equal(part.values, before)


@pytest.mark.parametrize("rule", ["sum", "momentum", "adam"])
def test_a_range_of_several_pieces_steps_as_short_ones_do(rule: str) -> None:
    size = 2 * PIECE_VALUES + 77
    spec = replace(vector(rule), size=size)
    whole = DenseRange(spec, 0, size)
    bounds = [0, 1000, PIECE_VALUES + 3, size]
    parts = [DenseRange(spec, a, b) for a, b in pairwise(bounds)]

    for step in (1, 2):
        grads = numbers(size, step)
        whole.push(grads, lr=0.1, step=step)
        for part in parts:
            part.push(grads[part.start : part.stop], lr=0.1, step=step)

    for which in ("values", "states"):
        joined = np.concatenate([getattr(part, which) for part in parts], axis=-1)
        np.testing.assert_array_equal(joined, getattr(whole, which))


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_state_put_in_part_by_part_goes_on_as_one_put_in_whole(dampening: float) -> None:
    spec = vector("momentum", dampening=dampening)
    began = DenseRange(spec, 0, 100)
    began.push(numbers(100), lr=0.1, step=1)
    whole, parts = DenseRange(spec, 0, 100), DenseRange(spec, 0, 100)

    whole.assign(began.values, began.states)
    for a, b in ((40, 100), (0, 40)):
        parts.assign_part(a, began.values[a:b], began.states[:, a:b])
    for each in (began, whole, parts):
        each.push(numbers(100, 2), lr=0.1, step=2)

    np.testing.assert_array_equal(whole.values, began.values)
    np.testing.assert_array_equal(parts.values, began.values)
    with pytest.raises(RowShapeError):
        parts.assign_part(90, began.values[:20], began.states[:, :20])


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_part_is_overwritten_whether_or_not_the_range_has_stepped(
    has_stepped: bool,
) -> None:
    part = DenseRange(vector("momentum"), 0, 100)
    if has_stepped:
        part.push(numbers(100), lr=0.1, step=1)
    values, states = part.values.copy(), part.states.copy()

    part.put(20, numbers(30, 5), numbers(30, 6).reshape(1, 30), stepped=False)

    values[20:50], states[0, 20:50] = numbers(30, 5), numbers(30, 6)
    np.testing.assert_array_equal(part.values, values)
    np.testing.assert_array_equal(part.states, states)
    assert part.is_untouched != has_stepped
    part.put(0, numbers(1), numbers(1).reshape(1, 1), stepped=True)
    assert not part.is_untouched


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_range_that_is_put_goes_on_as_the_one_it_was_read_of(dampening: float) -> None:
    spec = vector("momentum", dampening=dampening)
    began, other = DenseRange(spec, 0, 100), DenseRange(spec, 0, 100)
    began.push(np.zeros(100, np.float32), lr=0.1, step=1)  # its momentum is zero, and has begun

    for a, b in ((40, 100), (0, 40)):
        other.put(a, began.values[a:b], began.states[:, a:b], stepped=not began.is_untouched)
    for each in (began, other):
        each.push(numbers(100, 2), lr=0.1, step=2)

    np.testing.assert_array_equal(other.values, began.values)


def test_numbers_that_dont_fit_are_not_put() -> None:
    part = DenseRange(vector("adam"), 0, 10)
    before = part.values.copy()

    for at, length, columns in ((9, 2, 2), (0, 2, 1)):
        with pytest.raises(RowShapeError):
            part.put(at, numbers(length), np.zeros((columns, length), np.float32), stepped=True)

    np.testing.assert_array_equal(part.values, before)
    assert part.is_untouched
