"""float8 e4m3: what torch makes of the same numbers, and a power of two a row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    DENSE_WIDTH,
    Encoded,
    WireDtype,
    decode_rows,
    encode_rows,
    encode_with_rest,
    is_finite,
    num_nonfinite,
)

WIRE: WireDtype = "float8_e4m3"


def in_torch(
    rows: NDArray[np.float32], scales: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the bits that torch makes of scaled rows, and what they stand for."""
    steps = np.ldexp(1.0, scales.astype(np.int64) - 127)[:, None]
    scaled = torch.from_numpy(np.clip(rows / steps, -448, 448).astype(np.float32))
    numbers = scaled.to(torch.float8_e4m3fn)
    values = numbers.float().numpy().astype(np.float64) * steps
    return numbers.view(torch.uint8).numpy(), values.astype(np.float32)


def scale_in_numpy(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the codes of the least powers of two with which the rows fit."""
    largest = np.abs(rows.astype(np.float64)).max(axis=1)
    fits = largest[:, None] <= 448 * np.ldexp(1.0, np.arange(1, 247) - 127)
    return np.where(fits.any(axis=1), fits.argmax(axis=1) + 1, 246)


@given(
    rows=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 40)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_a_row_is_what_torch_makes_of_it_divided_by_its_scale(
    rows: NDArray[np.float32],
) -> None:
    encoded = encode_rows(rows, WIRE)

    assert encoded.scales is not None
    bits, values = in_torch(rows, encoded.scales)
    assert encoded.scales.tolist() == scale_in_numpy(rows).tolist()
    assert encoded.rows.view(np.uint8).tolist() == bits.tolist()
    np.testing.assert_array_equal(decode_rows(encoded, WIRE), values)


def test_numbers_between_two_of_the_format_become_what_torch_makes_of_them() -> None:
    bits = np.random.default_rng(0).integers(0x3A000000, 0x43E00001, (1 << 12, 16))
    rows = bits.astype(np.uint32).view(np.float32)
    rows[:, 0] = 448.0  # so that the scale is 1
    halves = np.arange(0x3B000000, 0x43E00000, 1 << 19, dtype=np.uint32).view(np.float32)
    rows[: len(halves), 1] = halves

    encoded = encode_rows(rows, WIRE)

    assert encoded.scales is not None
    assert set(encoded.scales.tolist()) == {127}
    expected = torch.from_numpy(rows).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encoded.rows.view(np.uint8), expected)


def test_every_number_is_read_as_torch_reads_it() -> None:
    every = np.arange(256, dtype=np.uint8)

    decoded = decode_rows(Encoded(every.view(np.int8), np.array([127], np.uint8)), WIRE)

    expected = torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decoded, expected)


@given(
    rows=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 40)),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
def test_a_value_is_kept_within_a_16th_of_itself(rows: NDArray[np.float32]) -> None:
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)

    error = np.abs(decode_rows(encode_rows(rows, WIRE), WIRE).astype(np.float64) - rows)

    least = np.maximum(2.0**-17 * largest, 2.0**-136)
    assert (error <= np.maximum(np.abs(rows) / 16, least)).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_row_with_an_infinity_or_nan_is_refused_and_nan(bad: float) -> None:
    rows = np.array([[1.0, 2.0, 3.0], [1.0, bad, 3.0]], np.float32)

    encoded = encode_rows(rows, WIRE)

    assert not is_finite(encoded, WIRE)
    assert num_nonfinite(encoded, WIRE) == 1
    assert np.isnan(decode_rows(encoded, WIRE)[1]).all()
    assert decode_rows(encoded, WIRE)[0].tolist() == [1.0, 2.0, 3.0]


def test_a_nan_among_the_numbers_is_refused() -> None:
    numbers = np.zeros((3, 2), np.uint8)
    numbers[0, 1], numbers[2, 0] = 0x7F, 0xFF
    encoded = Encoded(numbers.view(np.int8), np.full(3, 127, np.uint8))
    vector = Encoded(np.full(DENSE_WIDTH + 1, 0x7F, np.int8), np.array([127, 127], np.uint8))

    assert not is_finite(encoded, WIRE)
    assert num_nonfinite(encoded, WIRE) == 2
    assert num_nonfinite(vector, WIRE) == 2
    assert is_finite(encoded.part(slice(1, 2)), WIRE)
    assert num_nonfinite(encoded.part(slice(0, 0)), WIRE) == 0


def test_a_row_that_could_overflow_is_refused() -> None:
    scales = np.array([0, 1, 246, 247, 254, 255], np.uint8)
    encoded = Encoded(np.zeros((6, 1), np.int8), scales)

    assert num_nonfinite(encoded, WIRE) == 3
    assert is_finite(encoded.part(slice(0, 3)), WIRE)


def test_the_largest_numbers_become_the_largest_of_the_format() -> None:
    rows = np.array([[np.finfo(np.float32).max, -np.finfo(np.float32).max]], np.float32)

    encoded = encode_rows(rows, WIRE)

    assert is_finite(encoded, WIRE)
    assert decode_rows(encoded, WIRE).tolist() == [[448 * 2.0**119, -448 * 2.0**119]]


@given(
    num=st.sampled_from([0, 1, 7, 100]),
    dim=st.sampled_from([2, 3, 8, 100]),
    seed=st.integers(0, 99),
)
def test_what_is_left_is_the_sum_less_what_was_sent(num: int, dim: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal((num, dim)).astype(np.float32)
    values *= np.float32(10.0) ** random.integers(-12, 6, (num, 1)).astype(np.float32)
    left = random.standard_normal((num + 50, dim)).astype(np.float32)
    slots = random.permutation(num + 50)[:num]
    total, kept = left[slots] + values, left.copy()
    expected = encode_rows(total, WIRE)
    kept[slots] = total - decode_rows(expected, WIRE)

    encoded = encode_with_rest(values, left, slots, WIRE)

    np.testing.assert_array_equal(encoded.rows, expected.rows)
    assert encoded.scales is not None
    np.testing.assert_array_equal(encoded.scales, expected.scales)
    np.testing.assert_array_equal(left, kept)
