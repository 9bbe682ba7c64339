"""GEO's workers hold a state each; a checkpoint holds one."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_pserver.core.gathered import UNKNOWN, Held, merged
from paramfleet_shared.tables.spec import OptimizerSpec

ADAM = OptimizerSpec(rule="adam")


def held(counts: list[int], states: list[list[float]]) -> Held:
    return Held(np.array(counts, np.int64), np.array(states, np.float32))


def together(rule: OptimizerSpec, *workers: Held) -> NDArray[np.float32]:
    num_rows = len(workers[0].counts) if workers else 2
    return merged(rule, workers, num_rows=num_rows, dim=2 // rule.num_state_columns)


def test_adagrad_sums_what_every_worker_added_to_the_first_value() -> None:
    rule = OptimizerSpec(rule="adagrad", initial_accumulator_value=0.5)
    ada = held([3, 1, UNKNOWN], [[2.5, 0.5], [1.5, 0.5], [9.0, 9.0]])
    bob = held([7, UNKNOWN, UNKNOWN], [[1.0, 0.75], [9.0, 9.0], [9.0, 9.0]])

    found = together(rule, ada, bob)

    assert found.tolist() == [[3.0, 0.75], [1.5, 0.5], [0.5, 0.5]]
    assert found.dtype == np.float32


def test_adam_takes_the_mean_of_those_that_stepped_a_row_by_how_often() -> None:
    ada = held([3, 4, 0, 0, UNKNOWN], [[1, 0], [2, 2], [8, 8], [8, 8], [9, 9]])
    bob = held([1, UNKNOWN, 2, 0, UNKNOWN], [[5, 4], [9, 9], [6, 6], [8, 8], [9, 9]])

    found = together(ADAM, ada, bob)

    assert found.tolist() == [[2, 1], [2, 2], [6, 6], [8, 8], [0, 0]]


def test_ftrl_sums_the_squares_and_takes_the_mean_of_what_l1_holds_back() -> None:
    ada, bob = held([3], [[1.0, 4.0]]), held([1], [[-1.0, 2.0]])

    assert together(OptimizerSpec(rule="ftrl"), ada, bob).tolist() == [[0.5, 6.0]]


def test_a_row_s_own_column_is_one_number() -> None:
    rule = OptimizerSpec(rule="rowwise_adagrad", initial_accumulator_value=0.5)
    ada, bob = held([3, 1], [[2.5], [1.5]]), held([7, UNKNOWN], [[1.0], [9.0]])

    assert merged(rule, [ada, bob], num_rows=2, dim=64).tolist() == [[3.0], [1.5]]


@pytest.mark.parametrize("rule", ["adagrad", "adam", "momentum"])
def test_states_that_nobody_has_are_new(rule: str) -> None:
    spec = OptimizerSpec(rule=rule)

    assert (together(spec) == spec.initial_state).all()


@pytest.mark.parametrize("rule", ["adagrad", "adam"])
def test_one_worker_s_states_stay_what_they_are(rule: str) -> None:
    states = np.random.default_rng(1).random((5, 2), np.float32)
    alone = Held(np.arange(5), states)

    spec = OptimizerSpec(rule=rule)

    assert np.array_equal(together(spec, alone), states)
