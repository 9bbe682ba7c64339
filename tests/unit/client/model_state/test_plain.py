"""Plain values come back as they were; nothing else is written or read."""

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from paramfleet.model_state.plain import (
    carrier_of,
    dtype_name,
    from_document,
    tensor_of,
    to_document,
)

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128",
    "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_tensor_comes_back_to_the_bit(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)

    again = tensor_of(carrier_of(tensor), dtype=dtype_name(dtype), shape=shape)

    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert carrier_of(again).tobytes() == carrier_of(tensor).tobytes()


def test_a_carrier_is_a_copy_of_a_view_too() -> None:
    tensor = torch.arange(6).reshape(2, 3).t()
    carrier = carrier_of(tensor)

    tensor.zero_()

    np.testing.assert_array_equal(carrier, [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
    ],
    ids=["meta", "sparse"],
)
def test_a_tensor_without_plain_numbers_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="without values"):
        carrier_of(tensor)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (3,)), ("int32", (2,)), ("Tensor", (2,)), ("float", (2,)), ("nothing", (2,))],
)
def test_numbers_of_another_kind_are_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"dtype|numbers"):
        tensor_of(np.ones(2, np.float32), dtype=dtype, shape=shape)


def test_a_plain_value_comes_back_through_json() -> None:
    value = {
        "none": None, "flag": True, "count": -(2**62), "text": "\u00e9", "half": 0.5,
        "edges": [math.inf, -math.inf], "tensors": [torch.ones(2), torch.tensor(3)],
        "pair": (1, (2.0, "x")), "counter": Counter({3: 2, 1: 1}),
        "nested": OrderedDict(dict={"float": "nan", "tensor": "x"}),
    }  # fmt: skip
    arrays: dict[str, Any] = {}

    document = json.loads(json.dumps(to_document(value, arrays), allow_nan=False))
    again = from_document(document, arrays)

    assert torch.equal(again["tensors"][0], torch.ones(2))
    assert torch.equal(again["tensors"][1], torch.tensor(3))
    del again["tensors"], value["tensors"]
    assert again == value
    assert type(again["counter"]) is Counter


def test_nan_comes_back() -> None:
    assert math.isnan(from_document(to_document(math.nan, {}), {}))


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(40):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"a": [1, {2}]}, r"\['a'\]\[1\] is a set"),
        (object(), "a object"),
        (b"bytes", "a bytes"),
        (np.float32(1), "a float32"),
        ({1: 2}, "no string"),
        (2**70, "too large"),
        ("\ud800", "surrogates"),
        (deep(), "deeper"),
    ],
)
def test_what_is_not_plain_is_refused_by_its_place(value: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        to_document(value, {})


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"dict": 1},
        {"dict": {}, "more": 1},
        {"float": "1.0"},
        {"tuple": 1},
        {"counter": [[1]]},
        {"counter": [[None, 1]]},
        {"tensor": "extra/0", "dtype": "float32", "shape": [1]},
        {"tensor": "extra/0", "dtype": "float32"},
        deep(),
    ],
)
def test_a_document_of_something_else_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"wrongly|missing|deep"):
        from_document(document, {})
