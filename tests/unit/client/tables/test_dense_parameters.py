"""Whether a checkpoint's vectors are those of the model's dense tables."""

from typing import Any

import pytest
import torch

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.dense_parameters import (
    DenseOrderError,
    DenseParameterError,
    check_same_places,
    have_same_places,
    parameters_of,
)
from paramfleet_shared.checkpoint.saved_parameters import SavedParameter
from paramfleet_shared.errors import ContractError, error_from_wire, error_to_wire

A, B, C = (SavedParameter(name, (2, size)) for name, size in (("a", 3), ("b", 3), ("c", 4)))
TALL = SavedParameter("a", (3, 2))


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        ({}, {}),
        ({"dense_0": (A, B)}, {"dense_0": (A, B)}),
        ({}, {"dense_0": (A, B)}),  # of a former version
        ({"dense_0": (A, B)}, {}),  # a model without names
        ({"dense_0": (A,)}, {"dense_0": (A,), "dense_1": (B,)}),
        ({"dense_0": (A,), "dense_2": (C,)}, {"dense_0": (A,), "dense_1": (B,)}),
    ],
)
def test_vectors_of_the_same_parameters_pass(saved: Any, here: Any) -> None:
    assert have_same_places(saved, here)
    check_same_places(saved, here)


@pytest.mark.parametrize(
    ("saved", "here", "facts"),
    [
        ({"dense_0": (A, B)}, {"dense_0": (B, A)}, ("dense_0", "b", 0, "dense_0", 1)),
        (
            {"dense_0": (A, B)},
            {"dense_0": (A,), "dense_1": (B,)},
            ("dense_1", "b", 0, "dense_0", 1),
        ),
        ({"dense_0": (A, B)}, {"dense_1": (A, B)}, ("dense_1", "a", 0, "dense_0", 0)),
        (
            {"dense_0": (A,), "dense_1": (B, C)},
            {"dense_0": (A,), "dense_1": (C, B)},
            ("dense_1", "c", 0, "dense_1", 1),
        ),
    ],
)
def test_the_first_parameter_at_another_place_is_named(
    saved: Any, here: Any, facts: tuple[Any, ...]
) -> None:
    assert not have_same_places(saved, here)

    with pytest.raises(DenseOrderError, match="in the order and groups of the") as caught:
        check_same_places(saved, here)

    assert tuple(caught.value.facts.values()) == facts


@pytest.mark.parametrize(
    ("saved", "here", "table", "parameter", "difference"),
    [
        ({"dense_0": (A,)}, {"dense_0": (A, B)}, "dense_0", "b", "is not in the checkpoint"),
        ({"dense_0": (B, A)}, {"dense_0": (A,)}, "dense_0", "b", "is in the checkpoint, "),
        ({"dense_0": (TALL,)}, {"dense_0": (A,)}, "dense_0", "a", "has shape (2, 3), and in"),
        ({"dense_0": (A, C)}, {"dense_1": (C,)}, "dense_0", "a", "is in the checkpoint, "),
    ],
)
def test_the_first_parameter_that_one_of_them_lacks_is_named(
    saved: Any, here: Any, table: str, parameter: str, difference: str
) -> None:
    with pytest.raises(DenseParameterError, match="its former name") as caught:
        check_same_places(saved, here)

    assert (caught.value.table, caught.value.parameter) == (table, parameter)
    assert caught.value.difference.startswith(difference)


@pytest.mark.parametrize("here", [(B, A), (A,)])
def test_every_worker_gets_the_error_that_the_first_had(here: Any) -> None:
    with pytest.raises(ContractError) as caught:
        check_same_places({"dense_0": (A, B)}, {"dense_0": here})

    again = error_from_wire(error_to_wire(caught.value))

    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)


def test_parameters_have_the_names_of_the_model_that_was_given() -> None:
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    second.weight = first.bias
    model = torch.nn.Sequential(first, second)
    blocks = [
        DenseBlock("dense_0", [second.bias, second.weight]),
        DenseBlock("dense_3", [first.weight]),
        DenseBlock("dense_4", [torch.nn.Parameter(torch.zeros(1))]),
    ]

    assert parameters_of(model, blocks) == {
        "dense_0": (SavedParameter("1.bias", (1,)), SavedParameter("0.bias", (2,))),
        "dense_3": (SavedParameter("0.weight", (2, 3)),),
    }
    assert parameters_of(None, blocks) == {}


def test_a_compiled_model_has_the_names_of_the_model() -> None:
    layer, wrapper = torch.nn.Linear(2, 1), torch.nn.Module()
    wrapper.add_module("_orig_mod", layer)  # as torch.compile wraps a module
    block = DenseBlock("dense_0", list(layer.parameters()))
    found = parameters_of(torch.nn.Sequential(wrapper), [block])
    assert found == parameters_of(torch.nn.Sequential(layer), [block])
    assert [each.name for each in found["dense_0"]] == ["0.weight", "0.bias"]
