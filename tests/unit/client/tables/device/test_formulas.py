"""Rules by torch's operations: the kernels' numbers, bit for bit on a processor."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from paramfleet.tables.device.formulas import step_values
from paramfleet_shared.tables.kernels.replica import step_slots
from paramfleet_shared.tables.kernels.stepping.rules import step_of, step_range
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import OptimizerSpec

NUM_ROWS = 23

SPECS = [
    *(OptimizerSpec(rule=name) for name, rule in RULES.items() if rule.formulas),
    OptimizerSpec(rule="sgd", weight_decay=0.1),
    OptimizerSpec(rule="momentum", momentum=0.9, dampening=0.1, nesterov=False),
    OptimizerSpec(rule="momentum", momentum=0.9, nesterov=True),
    OptimizerSpec(rule="adagrad", lr_decay=0.01, initial_accumulator_value=0.3),
    OptimizerSpec(rule="ftrl", l1=0.02, l2=0.1),
]
IDS = [f"{number}-{spec.rule}" for number, spec in enumerate(SPECS)]


@pytest.mark.parametrize("dim", [1, 8, 13, 16, 21])
@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_rows_step_to_the_bits_of_the_kernel(spec: OptimizerSpec, dim: int) -> None:
    random = np.random.default_rng(dim)
    layout = RowLayout.of_states(spec, dim)
    kernel_rows = np.empty((NUM_ROWS, dim + layout.pitch), np.float32)
    kernel_rows[:, :dim] = random.normal(size=(NUM_ROWS, dim))
    kernel_rows[:, dim:] = layout.first
    rows = torch.from_numpy(kernel_rows.copy())
    spans = [layout.spans[column.name] for column in spec.record.columns]
    states = [rows[:, dim + span.start : dim + span.stop] for span in spans]
    first, second = [*(dim + span.start for span in spans), 0, 0][:2]
    for number in range(1, 6):
        grads = random.normal(size=(NUM_ROWS, dim)).astype(np.float32)
        step_slots(
            step_of(spec, sparse=True, lr=0.05, step=number),
            kernel_rows.reshape(-1),
            grads.reshape(-1),
            np.arange(NUM_ROWS),
            (dim, kernel_rows.shape[1], first, second),
        )
        moment = Moment(0.05, number)
        values, kept = step_values(
            spec, moment, rows[:, :dim], states, torch.from_numpy(grads), sparse=True
        )
        rows[:, :dim] = values
        for state, new in zip(states, kept, strict=True):
            state[:] = new
        assert_array_equal(rows.numpy(), kernel_rows)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_dense_values_step_to_the_bits_of_the_kernel(spec: OptimizerSpec) -> None:
    random = np.random.default_rng(7)
    size, num_states = 1003, spec.num_state_columns
    block = np.full((1 + num_states, size), spec.initial_state, np.float32)
    block[0] = random.normal(size=size)
    values = torch.from_numpy(block[0].copy())[:, None]
    states = [torch.from_numpy(row.copy())[:, None] for row in block[1:]]
    for number in range(1, 6):
        grads = random.normal(size=size).astype(np.float32)
        is_first = number == 1
        numbers = step_of(spec, sparse=False, lr=0.05, step=number, first=is_first)
        step_range(numbers, block.reshape(-1), grads, 0, size)
        moment = Moment(0.05, number, is_first)
        values, kept = step_values(
            spec, moment, values, states, torch.from_numpy(grads)[:, None], sparse=False
        )
        states = list(kept)
        assert_array_equal(values.numpy()[:, 0], block[0])
        for state, row in zip(states, block[1:], strict=True):
            assert_array_equal(state.numpy()[:, 0], row)


def test_what_is_given_stays_as_it_is() -> None:
    values, state, grads = torch.ones(2, 3), torch.zeros(2, 3), torch.ones(2, 3)
    spec = OptimizerSpec(rule="adagrad")
    moved, _ = step_values(spec, Moment(0.1, 1), values, [state], grads, sparse=True)
    assert not torch.equal(moved, values)
    assert torch.equal(values, torch.ones(2, 3))
    assert torch.equal(state, torch.zeros(2, 3))
