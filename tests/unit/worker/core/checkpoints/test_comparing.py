"""What differs between two parts of a table is counted and measured."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_worker.core.checkpoints.comparing import (
    NO_CHANGES,
    Changes,
    Rows,
    changes_of_rows,
    changes_of_values,
    options_that_differ,
)


def rows(ids: list[int], values: list[float], states: list[float] | None = None) -> Rows:
    wide = np.array(values, np.float32)[:, None]
    other = np.zeros((len(ids), 0), np.float32)
    if states is not None:
        other = np.array(states, np.float32)[:, None]
    return Rows(np.array(ids, np.int64), wide, other)


def test_rows_are_compared_by_id_wherever_they_stand() -> None:
    a = rows([1, 2, 3], [1.0, 2.0, 3.0])

    assert changes_of_rows(a, rows([3, 1, 2], [3.0, 1.0, 2.0])) == NO_CHANGES


def test_rows_of_one_side_changed_values_and_states_are_counted() -> None:
    a = rows([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])
    b = rows([2, 3, 4, 5, 6], [2.0, 3.5, 4.0, 5.0, 6.0], [0.0, 0.0, 2.0, 0.0, 0.0])

    assert changes_of_rows(a, b) == Changes(
        only_in_a=1,
        only_in_b=2,
        changed_values=1,
        changed_states=1,
        largest=0.5,
        largest_state=2.0,
    )


def test_no_rows_are_equal_to_no_rows() -> None:
    assert not changes_of_rows(rows([], []), rows([], [])).any


def test_states_of_other_columns_are_not_compared() -> None:
    found = changes_of_rows(rows([1], [1.0], [2.0]), rows([1], [1.0]))

    assert found == NO_CHANGES


@pytest.mark.parametrize(
    ("a", "b", "largest"),
    [(0.0, -0.0, 0.0), (math.nan, math.nan, 0.0), (math.inf, math.inf, 0.0)],
)
def test_what_means_the_same_number_is_equal(a: float, b: float, largest: float) -> None:
    assert changes_of_rows(rows([1], [a]), rows([1], [b])).largest == largest


@pytest.mark.parametrize(("a", "b"), [(1.0, math.nan), (math.inf, 0.0), (math.inf, -math.inf)])
def test_a_difference_from_what_is_not_finite_is_infinite(a: float, b: float) -> None:
    found = changes_of_rows(rows([1], [a]), rows([1], [b]))

    assert (found.changed_values, found.largest) == (1, math.inf)


def test_numbers_of_both_ends_of_float32_differ_by_a_finite_number() -> None:
    found = changes_of_rows(rows([1], [3e38]), rows([1], [-3e38]))

    assert found.largest == pytest.approx(6e38)


def dense(*values: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.array(values, np.float32), np.array([values, values], np.float32)


def test_values_of_a_dense_table_and_their_states_are_compared() -> None:
    found = changes_of_values(dense(1.0, 2.0, 3.0), dense(1.0, 2.25, 3.0))

    assert found == Changes(
        changed_values=1, changed_states=1, largest=0.25, largest_state=0.25
    )


def test_parts_add_up() -> None:
    one = Changes(only_in_a=1, changed_values=2, largest=0.5)
    two = Changes(only_in_b=3, changed_values=1, largest=0.25, changed_states=1)

    assert one.plus(two) == Changes(
        only_in_a=1, only_in_b=3, changed_values=3, largest=0.5, changed_states=1
    )


def test_options_that_differ_are_named_with_both_values() -> None:
    a = TableSpec(name="ads", kind="sparse", dim=2, num_shards=8)
    b = TableSpec(
        name="ads",
        kind="sparse",
        dim=2,
        num_shards=16,
        optimizer=OptimizerSpec(rule="adagrad"),
        initializer=InitializerSpec(kind="constant", value=1.0),
    )

    found = options_that_differ(a.to_wire(), b.to_wire())

    assert found["optimizer.rule"] == ["sgd", "adagrad"]
    assert found["initializer.kind"] == ["zeros", "constant"]
    assert found["initializer.value"] == [0.0, 1.0]
    assert "num_shards" not in found
    assert "dim" not in found
