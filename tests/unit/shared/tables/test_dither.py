"""Rounding to 16 bits by chance: unbiased, repeatable, and whole where nothing is lost."""

import numpy as np
import pytest

from paramfleet_shared.tables.encoding import WireDtype, decode_rows, encode_rows

HALVES: tuple[WireDtype, ...] = ("float16", "bfloat16")
_WORD = 0xFFFFFFFF


def random_bits(salt: int, num: int) -> np.ndarray:
    """Return lowbias32 of the places 0 to ``num`` - 1, in plain numpy."""
    x = (np.arange(num, dtype=np.uint64) * 0x9E3779B9 & _WORD) ^ np.uint64(salt)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor) & np.uint64(_WORD)
    return (x ^ (x >> np.uint64(15))).astype(np.uint32)


def round_trip(values: np.ndarray, dtype: WireDtype, salt: int) -> np.ndarray:
    return decode_rows(encode_rows(values, dtype, salt=salt), dtype)


def neighbours(values: np.ndarray, dtype: WireDtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the two values of the format that each value lies between."""
    if dtype == "float16":
        near = values.astype(np.float16)
        with np.errstate(over="ignore"):
            up = np.nextafter(near, np.float16(np.inf)).astype(np.float64)
            down = np.nextafter(near, np.float16(-np.inf)).astype(np.float64)
        same = near.astype(np.float64)
        return np.where(same <= values, same, down), np.where(same >= values, same, up)
    low = values.view(np.uint32) & np.uint32(0xFFFF0000)
    step = np.where(low == values.view(np.uint32), 0, 1 << 16).astype(np.uint32)
    ends = low.view(np.float32), (low + step).view(np.float32)
    return np.minimum(*ends), np.maximum(*ends)


@pytest.mark.parametrize("salt", [0, 1, 0xFFFFFFFF])
def test_the_bits_of_bfloat16_are_those_of_the_formula(salt: int) -> None:
    values = np.random.default_rng(0).standard_normal(5001).astype(np.float32)
    bits = values.view(np.uint32) + (random_bits(salt, values.size) & np.uint32(0xFFFF))

    encoded = encode_rows(values, "bfloat16", salt=salt).rows

    np.testing.assert_array_equal(encoded, (bits >> np.uint32(16)).astype(np.uint16))


@pytest.mark.parametrize("salt", [0, 7])
def test_a_float16_goes_up_where_chance_is_below_what_lies_above(salt: int) -> None:
    random = np.random.default_rng(1)
    values = random.standard_normal(5001).astype(np.float32)
    values *= np.float32(10.0) ** random.integers(-9, 4, values.size).astype(np.float32)
    low, high = neighbours(np.abs(values), "float16")
    share = np.divide(np.abs(values) - low, high - low, where=high > low, out=low * 0)
    bits = random_bits(salt, values.size)
    normal = np.abs(values) >= 2.0**-14
    chance = np.where(normal, (bits & 0x1FFF) / 2**13, (bits >> 8) / 2**24)
    goes_up = np.where(normal, share + chance >= 1, share > chance)

    decoded = round_trip(values, "float16", salt)

    np.testing.assert_array_equal(decoded, np.sign(values) * np.where(goes_up, high, low))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [1.0009, -0.3, 3e-5, 1e-9, -7e4 / 3, 6.1e-5])
def test_what_arrives_is_right_on_average(dtype: WireDtype, value: float) -> None:
    values = np.full(1 << 18, value, np.float32)
    low, high = neighbours(values[:1], dtype)

    arriving = round_trip(values, dtype, salt=3).astype(np.float64)

    assert set(np.unique(arriving)) <= {float(low[0]), float(high[0])}
    step = float(high[0] - low[0])
    share = (value - float(low[0])) / step
    error = (share * (1 - share) / values.size) ** 0.5 * step
    assert abs(arriving.mean() - values[0]) <= 5 * error + 1e-12 * abs(value)


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_format_holds_stays_what_it_is(dtype: WireDtype) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = (every & 0x7C00) != 0x7C00 if dtype == "float16" else (every & 0x7F80) != 0x7F80
    held = every[finite].view(np.float16) if dtype == "float16" else every[finite]
    values = (
        held.astype(np.float32)
        if dtype == "float16"
        else (held.astype(np.uint32) << np.uint32(16)).view(np.float32)
    )

    np.testing.assert_array_equal(encode_rows(values, dtype, salt=11).rows, held)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 65504.0), ("bfloat16", 3.3895314e38)])
def test_the_beyond_becomes_the_largest_number_and_no_number_stays_none(
    dtype: WireDtype, most: float
) -> None:
    for salt in range(50):
        beyond = np.full(64, 3.402e38, np.float32)
        assert set(round_trip(beyond, dtype, salt)) == {np.float32(most)}
        assert set(round_trip(-beyond, dtype, salt)) == {np.float32(-most)}
        special = np.array([np.inf, -np.inf, np.nan], np.float32)
        np.testing.assert_array_equal(round_trip(special, dtype, salt), special)
    every = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(round_trip(every, dtype, 0xFFFFFFFF)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_another_salt_rounds_otherwise_and_the_same_alike(dtype: WireDtype) -> None:
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32)

    one, again, other = (encode_rows(values, dtype, salt=salt).rows for salt in (4, 4, 5))

    np.testing.assert_array_equal(one, again)
    assert 0.3 < (one != other).mean() < 0.7
