"""Odd values in the place of good ones, the same for the same seed."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["mutated", "mutated_bytes", "mutated_tensors"]

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 62),
    (1 << 63) - 1, -(1 << 63), 0.5, -0.0, 1e39, 1e308, float("inf"), float("-inf"),
    float("nan"), "", "x", "flat", "..", "../../etc", "/", "\0", "a\0b", "\x1b[2J", "\u202e",
    "x" * 300, "x" * 100_000, b"", b"\xff" * 64, [], [[]], [None], [0] * 1000, {}, {"a": {}},
    {"": None}, [[[[[[[[[[[[]]]]]]]]]]]],
)  # fmt: skip

_DTYPES = ("float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint16", "bool")


def mutated(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """Return a value of which something is odd, somewhere."""
    if isinstance(value, Mapping) and value and rng.random() < 0.85:
        return _mutated_mapping(value, rng, depth)
    if isinstance(value, list) and value and rng.random() < 0.8:
        copy = list(value)
        where = rng.randrange(len(copy))
        match rng.randrange(4):
            case 0:
                del copy[where]
            case 1:
                copy.insert(where, copy[where])
            case _:
                copy[where] = mutated(copy[where], rng, depth + 1)
        return copy
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 2, 1 << 20, -(1 << 40), 1 << 62))
    return rng.choice(_ODD)


def _mutated_mapping(value: Mapping[Any, Any], rng: random.Random, depth: int) -> Any:
    copy = dict(value)
    name = rng.choice(list(copy))
    match rng.randrange(8):
        case 0:
            del copy[name]
        case 1:
            copy[rng.choice(("", "x", "rank", "tables", "0.rows"))] = rng.choice(_ODD)
        case _:
            copy[name] = mutated(copy[name], rng, depth + 1)
    return copy


def mutated_tensors(
    tensors: Mapping[str, NDArray[Any]], rng: random.Random
) -> dict[str, NDArray[Any]]:
    """Return tensors of which one is of another shape, type or name, or holds odd numbers."""
    copy = dict(tensors)
    if not copy:
        return {"0.ids": np.arange(3)} if rng.random() < 0.5 else {}
    name = rng.choice(list(copy))
    array = copy[name]
    match rng.randrange(7):
        case 0:
            del copy[name]
        case 1:
            copy[name + "x"] = copy.pop(name)
        case 2:
            copy[name] = array[: rng.randrange(len(array) + 1)] if array.ndim else array
        case 3:
            copy[name] = np.zeros(array.shape, rng.choice(_DTYPES))
        case 4:
            copy[name] = array.reshape(-1)[None]
        case 5:
            copy[name] = np.zeros((0,), array.dtype)
        case _:
            odd = array.copy().reshape(-1)
            if odd.size:
                raw = odd.view(np.uint8)
                for _ in range(rng.randint(1, 8)):
                    raw[rng.randrange(raw.size)] = rng.randrange(256)
            copy[name] = odd.reshape(array.shape)
    return copy


def mutated_bytes(text: bytes, rng: random.Random) -> bytes:
    """Return bytes with some flipped, cut out, repeated or put in."""
    copy = bytearray(text)
    for _ in range(rng.randint(1, 6)):
        where = rng.randrange(len(copy) + 1)
        match rng.randrange(5):
            case 0:
                copy[where : where + rng.randint(1, 8)] = b""
            case 1:
                copy[where:where] = rng.randbytes(rng.randint(1, 8))
            case 2:
                copy[where:where] = copy[where : where + rng.randint(1, 64)]
            case _ if where < len(copy):
                copy[where] = rng.randrange(256)
            case _:
                copy.append(rng.randrange(256))
    return bytes(copy)
