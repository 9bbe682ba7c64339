"""What a program changes of dense parameters between two steps is found, however it does it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from paramfleet.tables.dense import DenseBlock, DenseChangedError


def block_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> DenseBlock:
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    block = DenseBlock("dense_0", parameters)
    block.notes_changes = True
    block.install(np.arange(block.size, dtype=np.float32) / np.float32(3))
    return block


def clamp(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.clamp_(min=1.4)


def write_data(parameter: torch.Tensor) -> None:
    parameter.data[0, 1] = 7.0


def replace_data(parameter: torch.Tensor) -> None:
    parameter.data = parameter.data * 2


def transpose_data(parameter: torch.Tensor) -> None:
    parameter.data = (parameter.data.t().contiguous() + 1).t()


CHANGES = [clamp, write_data, replace_data, transpose_data]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_changed_values_are_found_with_their_places(
    change: Callable[[torch.Tensor], None], dtype: torch.dtype
) -> None:
    block = block_of((2,), (2, 3), (), dtype=dtype)
    before = block.values()
    assert block.changes() is None

    change(block.parameters[1])

    after, found = block.values(), block.changes()
    assert found is not None
    assert found.places.tolist() == np.flatnonzero(after != before).tolist()
    np.testing.assert_array_equal(found.values, after[found.places])

    block.note_sent(found)
    assert block.changes() is None


def test_a_zero_of_another_sign_is_no_change() -> None:
    block = block_of((3,))
    with torch.no_grad():
        block.parameters[0][0] = -0.0

    assert block.changes() is None


def test_values_without_a_copy_are_watched_by_their_versions() -> None:
    block = block_of((2, 3))
    block.watch_versions()
    assert block.changes() is None

    clamp(block.parameters[0])

    with pytest.raises(DenseChangedError, match="'dense_0'"):
        block.changes()


def test_values_with_a_gradient_are_those_of_parameters_that_have_one() -> None:
    block = block_of((2,), (3,), (0,), (4,))
    assert block.with_gradients() == ()
    for number in (1, 2, 3):
        block.parameters[number].grad = torch.zeros_like(block.parameters[number])
    assert block.with_gradients() == ((2, 9),)

    block.parameters[0].grad = torch.zeros(2)
    assert block.with_gradients() is None
