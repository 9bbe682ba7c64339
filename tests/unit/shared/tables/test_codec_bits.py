"""The bits that each format makes of numbers: they change on purpose only."""

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    WireDtype,
    decode_rows,
    encode_rows,
    encode_with_rest,
)

WIDTHS = (1, 3, 8, 16, 37, 256)


def all_kinds(num: int, salt: int) -> NDArray[np.float32]:
    """Return floats of every magnitude, infinities and NaN too."""
    bits = np.arange(num, dtype=np.uint64) * 2654435761 + salt * 40503
    return (bits & 0xFFFFFFFF).astype(np.uint32).view(np.float32)


def gradients(num: int, salt: int) -> NDArray[np.float32]:
    """Return floats as gradients are, below 8 in magnitude."""
    bits = np.arange(num, dtype=np.uint64) * 2246822519 + salt * 374761393
    return ((bits & 0xFFFFFFFF).astype(np.int64) - 2**31).astype(np.float32) * np.float32(
        2**-28
    )


def batches() -> list[NDArray[np.float32]]:
    """Return rows of several widths, and vectors."""
    rows = [make(width * 50, width) for width in WIDTHS for make in (all_kinds, gradients)]
    shaped = [flat.reshape(50, -1) for flat in rows]
    return [*shaped, all_kinds(1000, 5), gradients(1000, 6), gradients(0, 7)]


def digest(arrays: list[NDArray[Any]]) -> str:
    """Return a hash of types, shapes and bytes; every NaN is the same one."""
    found = blake2b(digest_size=8)
    for array in arrays:
        plain = array
        if array.dtype == np.float32:
            plain = np.where(np.isnan(array), np.float32(np.nan), array)
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(plain).tobytes())
    return found.hexdigest()


ENCODED = {
    "float32": "df29766a18621a56",
    "float16": "ee78139cb96a171d",
    "bfloat16": "74f4d3f092e1bec8",
    "int8": "ca1fd3e0df651fd9",
}
BY_CHANCE = {"float16": "897ffcabe498b6a2", "bfloat16": "9c82a35a82f27b40"}
DECODED = {
    "float16": "16cb17e18209f9b8",
    "bfloat16": "28657f56d9b1f3e4",
    "int8": "f8aa53b10af9b62b",
}
FED_BACK = "b42f01d4b9f75993"


@pytest.mark.parametrize("wire", ENCODED)
def test_what_travels_has_the_same_bits(wire: WireDtype) -> None:
    encoded = [part for batch in batches() for part in encode_rows(batch, wire)]

    assert digest([part for part in encoded if part is not None]) == ENCODED[wire]


@pytest.mark.parametrize("wire", BY_CHANCE)
def test_what_is_rounded_by_chance_has_the_same_bits(wire: WireDtype) -> None:
    encoded = [encode_rows(batch, wire, salt=41).rows for batch in batches()]

    assert digest(encoded) == BY_CHANCE[wire]


@pytest.mark.parametrize("wire", DECODED)
def test_what_arrives_has_the_same_bits(wire: WireDtype) -> None:
    decoded = [decode_rows(encode_rows(batch, wire), wire) for batch in batches()]

    assert digest(decoded) == DECODED[wire]


def test_what_is_fed_back_has_the_same_bits() -> None:
    slots = np.arange(50, dtype=np.int64)[::-1].copy()
    results: list[NDArray[Any]] = []
    for width in WIDTHS:
        left = gradients(60 * width, 3).reshape(60, width)
        for salt in range(3):
            values = gradients(50 * width, salt).reshape(50, width)
            encoded = encode_with_rest(values, left, slots, "int8")
            assert encoded.scales is not None
            results += [encoded.rows, encoded.scales, left.copy()]

    assert digest(results) == FED_BACK
