"""Tensors and plain values as documents that JSON can carry, with their numbers beside.

A tensor becomes a carrier, an array of a kind that every reader of safetensors knows, and the
name of its dtype: bfloat16 is carried as int16, booleans as bytes. A plain value is a tensor,
number, string, bool or None, or a list, tuple, dict or Counter of them. Nothing else passes,
so that nothing that is read is ever run.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    "carrier_of",
    "dtype_name",
    "from_document",
    "pack",
    "tensor_of",
    "to_document",
    "to_documents",
    "unpack",
]

Arrays = Mapping[str, NDArray[Any]]

_MAX_DEPTH = 32

_MAX_BITS = 64
"""Of an integer, its sign included."""

_DTYPES: dict[str, torch.dtype] = {
    name: found for name in dir(torch) if isinstance(found := getattr(torch, name), torch.dtype)
}
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NATIVE = {
    torch.float64, torch.float32, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def carrier_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as an array that no later change of the tensor reaches.

    Raises:
        ValueError: saying why, if it has none that can be carried.
    """
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError("it is a tensor without values, or a sparse or quantized one")
    found = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    found = found.resolve_conj().resolve_neg()
    if found.is_complex():
        found = torch.view_as_real(found)
    if found.dtype not in _NATIVE:
        found = found.view(_carrying(found.dtype))
    array: NDArray[Any] = found.numpy()
    return array


def tensor_of(carrier: NDArray[Any], *, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor that a carrier was made of.

    Raises:
        ValueError: if there is no such dtype, or the carrier doesn't fit it.
    """
    named = _DTYPES.get(dtype)
    if named is None or dtype_name(named) != dtype:
        problem = f"there is no dtype {dtype!r}"
        raise ValueError(problem)
    found = torch.from_numpy(np.array(carrier))
    real = named.to_real() if named.is_complex else named
    expected = real if real in _NATIVE else _carrying(real)
    if found.dtype != expected or found.shape != (*shape, *([2] if named.is_complex else [])):
        problem = f"its numbers are not those of a {dtype} of shape {list(shape)}"
        raise ValueError(problem)
    if named is torch.bool:
        return found != 0
    found = found if found.dtype == real else found.view(real)
    return torch.complex(found[..., 0], found[..., 1]) if named.is_complex else found


def to_document(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a plain value as JSON has it; the numbers of its tensors go into ``arrays``.

    Args:
        value: A tensor, number, string, bool or None, or a list or dict (by strings) of them.
        arrays: Gets one array for each tensor, under names that aren't there yet.

    Raises:
        ValueError: saying what is something else; ``arrays`` may have grown.
    """
    return _put(value, arrays, where="", depth=0)


def from_document(document: Any, arrays: Arrays) -> Any:
    """Return the plain value that ``to_document`` was given.

    Raises:
        ValueError: if it is no such document, or a tensor's numbers are missing or others.
    """
    return _take(document, arrays, depth=0)


def to_documents(
    values: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, str]]:
    """Return values by name as documents, the arrays of all, and why others aren't plain."""
    documents: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    refused: dict[str, str] = {}
    for name, value in values.items():
        pieces = dict(arrays)
        try:
            documents[name] = to_document(value, pieces)
        except ValueError as error:
            refused[name] = str(error)
        else:
            arrays = pieces
    return documents, arrays, refused


def pack(value: Any) -> bytes:
    """Return a plain value as bytes, for another worker.

    Raises:
        ValueError: saying what in it isn't plain.
    """
    arrays: dict[str, NDArray[Any]] = {}
    document = to_document(value, arrays)
    carried = {n: [a.dtype.str, list(a.shape), a.tobytes()] for n, a in arrays.items()}
    packed: bytes = msgpack.packb([document, carried])
    return packed


def unpack(packed: bytes) -> Any:
    """Return what ``pack`` was given.

    Raises:
        ValueError: if it isn't that.
    """
    try:
        document, carried = msgpack.unpackb(packed)
        arrays = {
            name: np.frombuffer(data, np.dtype(dtype)).reshape(shape)
            for name, (dtype, shape, data) in carried.items()
        }
    except (TypeError, AttributeError, msgpack.UnpackException) as error:
        problem = f"it is no packed value: {error!r}"
        raise ValueError(problem) from error
    return from_document(document, arrays)


def _put(value: Any, arrays: dict[str, NDArray[Any]], *, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        problem = f"it is nested deeper than {_MAX_DEPTH}"
        raise ValueError(problem)
    if isinstance(value, torch.Tensor):
        name = f"extra/{len(arrays)}"
        arrays[name] = carrier_of(value)
        return {"tensor": name, "dtype": dtype_name(value.dtype), "shape": list(value.shape)}
    if type(value) is list:
        return [
            _put(each, arrays, where=f"{where}[{index}]", depth=depth + 1)
            for index, each in enumerate(value)
        ]
    if type(value) is tuple:
        return {"tuple": _put(list(value), arrays, where=where, depth=depth)}
    if type(value) is Counter:
        counts = [list(item) for item in value.items()]
        return {"counter": _put(counts, arrays, where=where, depth=depth)}
    if type(value) in {dict, OrderedDict}:
        items = {
            _key(key, where): _put(each, arrays, where=f"{where}[{key!r}]", depth=depth + 1)
            for key, each in value.items()
        }
        return {"dict": items}
    return _scalar(value, where=where)


def _scalar(value: Any, *, where: str) -> Any:
    """Return a value without parts as JSON has it.

    Raises:
        ValueError: if it is anything else.
    """
    match value:
        case None | bool():
            return value
        case float() if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        case int() if type(value) is int and value.bit_length() < _MAX_BITS:
            return value
        case str() if type(value) is str:
            value.encode()  # raises where a file couldn't hold it
            return value
        case _:
            pass
    what = "an integer too large" if type(value) is int else f"a {type(value).__name__}"
    problem = f"{where or 'its value'} is {what}"
    raise ValueError(problem)


def _key(key: Any, where: str) -> str:
    """Return a dict's key.

    Raises:
        ValueError: if it is no string that a file could hold.
    """
    if type(key) is not str:
        problem = f"{where or 'its value'} has a key that is no string"
        raise ValueError(problem)
    key.encode()
    return key


def _take(document: Any, arrays: Arrays, *, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("a plain value is nested too deep")
    match document:
        case None | bool() | int() | float() | str():
            return document
        case list():
            return [_take(each, arrays, depth=depth + 1) for each in document]
        case {"dict": dict(items), **rest} if not rest:
            return {key: _take(each, arrays, depth=depth + 1) for key, each in items.items()}
        case {"tuple": list(items), **rest} | {"counter": list(items), **rest} if not rest:
            taken = _take(items, arrays, depth=depth)
            return tuple(taken) if "tuple" in document else Counter(_counts(taken))
        case {"float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case {"tensor": str(name), "dtype": str(dtype), "shape": list(shape)}:
            if name not in arrays:
                problem = f"the numbers {name!r} are missing"
                raise ValueError(problem)
            return tensor_of(arrays[name], dtype=dtype, shape=tuple(shape))
        case _:
            pass
    raise ValueError("a plain value is described wrongly")


def _counts(pairs: list[Any]) -> dict[Any, int]:
    """Return what a Counter is made of.

    Raises:
        ValueError: if it is anything else than pairs of a number or string and a number.
    """
    for pair in pairs:
        match pair:
            case [int() | float() | str(), int()]:
                continue
            case _:
                raise ValueError("a counter is described wrongly")
    return dict(pairs)


def _carrying(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that carries another one's bytes.

    Raises:
        ValueError: if none does.
    """
    if dtype.itemsize not in _WIDTHS:
        problem = f"no numbers carry {dtype_name(dtype)}"
        raise ValueError(problem)
    return _WIDTHS[dtype.itemsize]
