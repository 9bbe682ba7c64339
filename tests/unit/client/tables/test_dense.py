"""Dense parameters as one vector, and pieces of it."""

import numpy as np
import torch

from paramfleet.tables.dense import DenseBlock


def block() -> DenseBlock:
    """Return parameters of several shapes and types, one of them not contiguous, 46 values."""
    numbers = torch.Generator().manual_seed(1)
    parameters = [
        torch.nn.Parameter(torch.rand(3, 4, generator=numbers)),
        torch.nn.Parameter(torch.rand(5, 4, generator=numbers).T),
        torch.nn.Parameter(torch.rand((), generator=numbers)),
        torch.nn.Parameter(torch.rand(13, generator=numbers).to(torch.bfloat16)),
    ]
    assert not parameters[1].is_contiguous()
    return DenseBlock("dense_0", parameters)


def pieces(size: int, length: int) -> list[slice]:
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def test_pieces_together_are_the_vector() -> None:
    dense = block()
    for number, parameter in enumerate(dense.parameters):
        if number != 2:  # which has no gradient
            parameter.grad = torch.rand_like(parameter)

    for length in (1, 7, 46):
        places = pieces(dense.size, length)
        values = np.concatenate([dense.piece(where) for where in places])
        gradients = np.concatenate([dense.piece_of_gradients(where) for where in places])
        np.testing.assert_array_equal(values, dense.values())
        np.testing.assert_array_equal(gradients, dense.gradients())


def test_pieces_are_installed_in_their_places() -> None:
    values = np.arange(46, dtype=np.float32)

    for length in (1, 7, 46):
        dense = block()
        for where in reversed(pieces(dense.size, length)):
            dense.install_piece(where.start, values[where])
        np.testing.assert_array_equal(dense.values(), values)


def test_a_piece_of_one_parameter_is_no_copy() -> None:
    parameter = torch.nn.Parameter(torch.zeros(100))
    parameter.grad = torch.zeros(100)
    dense = DenseBlock("dense_0", [parameter])

    value, gradient = dense.piece(slice(10, 20)), dense.piece_of_gradients(slice(10, 20))

    assert np.shares_memory(value, parameter.detach().numpy())
    assert np.shares_memory(gradient, parameter.grad.numpy())


def test_nothing_has_an_empty_piece() -> None:
    dense = DenseBlock("dense_0", [])

    assert dense.piece(slice(0, 0)).shape == (0,)
    assert dense.piece_of_gradients(slice(0, 0)).shape == (0,)
