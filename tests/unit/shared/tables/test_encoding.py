"""Rows and ids in fewer bytes, and back."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    DENSE_WIDTH,
    WIRE_DTYPES,
    Encoded,
    WireDtype,
    are_sorted_within_shards,
    buffer_for,
    decode_rows,
    encode_rows,
    encode_with_rest,
    encoded_bytes,
    is_finite,
    narrowest,
    num_nonfinite,
    pack_ids,
    sort_within_shards,
    unpack_ids,
    warm_codecs,
)
from paramfleet_shared.tables.rowstore import RowShapeError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = arrays.arrays(
    np.float32, st.tuples(st.integers(0, 5), st.integers(1, 40)), elements=FLOATS
)
LOSSY = tuple(dtype for dtype in WIRE_DTYPES if dtype != "float32")
IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=100)


def all_float32(num: int) -> NDArray[np.float32]:
    """Return floats of every magnitude: random bits."""
    bits = np.random.default_rng(0).integers(0, 2**32, num, dtype=np.uint32)
    return bits.view(np.float32)


SCALES = np.array(
    [(1 + (c & 3) / 4) * 2.0 ** ((c >> 2) - 40) if c >> 2 else c * 2.0**-41 for c in range(255)]
    + [np.nan]
)
"""What the codes of int8 scales stand for."""


def int8_in_numpy(
    rows: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the codes of the rows' scales, and their numbers."""
    with np.errstate(invalid="ignore", over="ignore"):
        least = np.abs(rows).max(axis=1) / np.float32(127)
    codes = np.minimum(np.searchsorted(SCALES[:255], least), 254)
    codes[~np.isfinite(least)] = 255
    factors = np.float32(1) / SCALES[np.maximum(codes, 1)].astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = np.rint(np.clip(rows * factors[:, None], -127, 127))
    numbers[codes == 255] = 0
    return codes, numbers.astype(np.int64)


def bounds_of(num: int, cuts: list[int]) -> NDArray[np.int64]:
    """Return offsets of so many ids."""
    inner = sorted(min(cut, num) for cut in cuts)
    return np.array([0, *inner, num], np.int64)


def unpacked(packed: NDArray[np.uint8], bounds: NDArray[np.int64]) -> list[int]:
    """Return the ids that were packed."""
    ids = unpack_ids(packed, bounds)
    assert ids is not None
    return [int(each) for each in ids]


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
@given(rows=ROWS)
def test_what_is_encoded_is_finite_and_has_the_shape_of_the_rows(
    dtype: WireDtype, rows: NDArray[np.float32]
) -> None:
    encoded = encode_rows(rows, dtype)
    decoded = decode_rows(encoded, dtype)

    assert decoded.shape == rows.shape
    assert decoded.dtype == np.float32
    assert is_finite(encoded, dtype)
    assert np.isfinite(decoded).all()


def test_float16_is_what_numpy_makes_of_every_number_it_can_hold() -> None:
    values = all_float32(1 << 18)
    values = values[np.abs(values) < 65520]

    encoded = encode_rows(values, "float16").rows

    assert np.array_equal(encoded.view(np.uint16), values.astype(np.float16).view(np.uint16))


def test_every_float16_is_read_as_numpy_reads_it() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

    decoded = decode_rows(Encoded(every), "float16")

    assert np.array_equal(decoded, every.astype(np.float32), equal_nan=True)


def test_bfloat16_is_the_nearest_and_even_of_two() -> None:
    values = all_float32(1 << 16)
    values = values[np.abs(values) < 3e38].astype(np.float64)

    decoded = decode_rows(encode_rows(values.astype(np.float32), "bfloat16"), "bfloat16")

    step = np.ldexp(1.0, np.maximum(np.frexp(values)[1], -125) - 8)
    assert np.array_equal(decoded, np.rint(values / step) * step)


@given(
    rows=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 40)),
        elements=st.floats(width=32),
    )
)
def test_int8_is_the_least_scale_that_fits_the_row_times_whole_numbers(
    rows: NDArray[np.float32],
) -> None:
    encoded = encode_rows(rows, "int8")
    decoded = decode_rows(encoded, "int8")

    assert encoded.scales is not None
    codes, numbers = int8_in_numpy(rows)
    assert encoded.scales.tolist() == codes.tolist()
    assert encoded.rows.tolist() == numbers.tolist()
    expected = (SCALES[codes][:, None] * numbers).astype(np.float32)
    assert np.array_equal(decoded, expected, equal_nan=True)


@given(rows=ROWS, power=st.integers(-20, 9))
def test_int8_keeps_a_value_within_half_a_percent_of_the_rows_largest(
    rows: NDArray[np.float32], power: int
) -> None:
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0).astype(np.float64)
    rows = (rows / np.maximum(largest, 1e-38) * 10.0**power).astype(np.float32)

    error = np.abs(decode_rows(encode_rows(rows, "int8"), "int8").astype(np.float64) - rows)

    assert error.max(initial=0.0) <= max(0.005 * 10.0**power, 2.0**-42)


def test_a_vector_has_a_scale_for_each_part_of_it() -> None:
    vector = np.linspace(-1, 1, DENSE_WIDTH + 1, dtype=np.float32)
    vector[-1] = 1e-6

    encoded = encode_rows(vector, "int8")

    assert encoded.scales is not None
    assert encoded.scales.shape == (2,)
    assert decode_rows(encoded, "int8")[-1] == pytest.approx(1e-6, rel=0.01)
    assert encode_rows(vector[:0], "int8").rows.shape == (0,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_format_cannot_hold_becomes_its_largest_number(dtype: WireDtype) -> None:
    largest = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}[dtype]
    huge = np.array([[3.4e38, -3.4e38]], np.float32)

    decoded = decode_rows(encode_rows(huge, dtype), dtype)

    assert decoded.tolist() == [[largest, -largest]]


@pytest.mark.parametrize("dtype", LOSSY)
def test_infinities_and_nan_are_seen_on_the_other_side(dtype: WireDtype) -> None:
    rows = np.array([[1, 2], [np.inf, 1], [np.nan, 1], [-np.inf, 1]], np.float32)

    encoded = encode_rows(rows, dtype)
    decoded = decode_rows(encoded, dtype)

    assert not is_finite(encoded, dtype)
    assert num_nonfinite(encoded, dtype) == 3
    assert decoded[0] == pytest.approx([1, 2], rel=0.01)
    assert not np.isfinite(decoded[1:, 0]).any()
    if encoded.scales is not None:
        assert np.isnan(decoded[1:]).all()
    else:
        assert np.array_equal(decoded[1:, 0], rows[1:, 0], equal_nan=True)


def test_an_int8_row_is_judged_by_its_scale() -> None:
    rows = np.full((256, 2), -127, np.int8)
    encoded = Encoded(rows, np.arange(256, dtype=np.uint8))

    assert not is_finite(encoded, "int8")
    assert num_nonfinite(encoded, "int8") == 1
    assert np.isfinite(decode_rows(encoded.part(slice(0, 255)), "int8")).all()


@pytest.mark.parametrize("shape", [(3, 2), (3 * DENSE_WIDTH,)])
def test_a_number_that_int8_does_not_have_is_refused(shape: tuple[int, ...]) -> None:
    rows = np.full(shape, -127, np.int8)
    encoded = Encoded(rows, np.array([3, 120, 132], np.uint8))
    assert is_finite(encoded, "int8")

    rows[-1:] = -128

    assert not is_finite(encoded, "int8")
    assert num_nonfinite(encoded, "int8") == 1


@pytest.mark.parametrize(("code", "log2"), [(120, -3), (132, 0)])
def test_no_number_of_int8_equals_the_limit_that_it_must_be_below(code: int, log2: int) -> None:
    scales = np.array([code], np.uint8)
    for number in range(-128, 128):
        encoded = Encoded(np.array([[number]], np.int8), scales)
        below = abs(float(decode_rows(encoded, "int8")[0, 0])) < 2.0**log2
        assert is_finite(encoded, "int8", log2=log2) is below


def test_a_vector_of_int8_is_judged_part_by_part() -> None:
    encoded = Encoded(np.ones(2 * DENSE_WIDTH + 1, np.int8), np.array([255, 3, 255], np.uint8))

    assert num_nonfinite(encoded, "int8") == 2
    assert np.isnan(decode_rows(encoded, "int8")).sum() == DENSE_WIDTH + 1


def test_the_largest_numbers_pass_in_int8() -> None:
    rows = np.full((2, 3), np.finfo(np.float32).max, np.float32)

    encoded = encode_rows(rows, "int8")

    assert is_finite(encoded, "int8")
    assert decode_rows(encoded, "int8") == pytest.approx(127 * 1.5 * 2.0**23)


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (5, 3), (0,), (257,)])
def test_how_much_room_is_needed_is_known_before(
    dtype: WireDtype, shape: tuple[int, ...]
) -> None:
    rows, scales = buffer_for(shape, dtype)

    taken = rows.nbytes + (0 if scales is None else scales.nbytes)
    assert encoded_bytes(shape, dtype) == taken


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_room_that_is_there_is_filled(dtype: WireDtype) -> None:
    rows = np.array([[1.0, -2.0, 4.0]], np.float32)
    buffer = buffer_for((3, 3), dtype)
    out = np.zeros((1, 3), np.float32)

    encoded = encode_rows(rows, dtype, out=buffer.part(slice(1, 2)))
    back = decode_rows(encoded, dtype, out=out)

    assert back is out
    assert np.array_equal(out, decode_rows(buffer.part(slice(1, 2)), dtype))
    assert out == pytest.approx(rows, abs=0.02)


def test_float32_is_not_copied() -> None:
    rows = np.array([[1.0, np.nan]], np.float32)

    encoded = encode_rows(rows, "float32")

    assert decode_rows(encoded, "float32") is rows
    assert not is_finite(encoded, "float32")
    assert num_nonfinite(encoded, "float32") == 1


def test_only_float32_is_encoded() -> None:
    with pytest.raises(RowShapeError):
        encode_rows(np.zeros((1, 2)), "bfloat16")  # type: ignore[arg-type]  # on purpose


def test_what_came_read_only_is_decoded() -> None:
    rows = np.array([[1.0, -2.0, 4.0]], np.float32)
    encoded = encode_rows(rows, "bfloat16")
    encoded.rows.flags.writeable = False

    assert decode_rows(encoded, "bfloat16") == pytest.approx(rows)


def test_narrow_rows_are_no_smaller_in_int8() -> None:
    assert [narrowest("int8", dim) for dim in (1, 2, 3)] == ["bfloat16", "int8", "int8"]
    assert narrowest("float32", 1) == "float32"


@given(ids=IDS, cuts=st.lists(st.integers(0, 100), max_size=6), is_sorted=st.booleans())
def test_ids_that_were_packed_are_the_same_again(
    ids: list[int], cuts: list[int], is_sorted: bool
) -> None:
    batch = np.array(sorted(ids) if is_sorted else ids, np.int64)
    bounds = bounds_of(batch.size, cuts)

    packed = pack_ids(batch, bounds)

    if packed is not None:
        assert packed.nbytes < batch.nbytes
        assert unpacked(packed, bounds) == batch.tolist()


@pytest.mark.parametrize("width", [0, 1, 7, 8, 13, 31, 33, 57, 60, 61, 62])
def test_differences_of_any_width_are_packed(width: int) -> None:
    random = np.random.default_rng(width)
    steps = random.integers(0, 1 << width, 100, dtype=np.int64, endpoint=width == 0)
    ids = np.cumsum(steps) - 5
    bounds = np.array([0, 0, 60, 60, 100], np.int64)

    packed = pack_ids(ids, bounds)

    assert packed is not None
    assert unpacked(packed, bounds) == ids.tolist()


def test_ids_far_apart_are_not_packed() -> None:
    ids = np.array([-(2**63), 2**62, -(2**61), 2**60], np.int64)

    assert pack_ids(ids, bounds_of(4, [2])) is None


@given(data=st.binary(max_size=300), num=st.integers(0, 400), cut=st.integers(0, 400))
def test_bytes_that_are_not_packed_ids_are_refused_or_read_within_bounds(
    data: bytes, num: int, cut: int
) -> None:
    bounds = bounds_of(num, [cut])

    ids = unpack_ids(np.frombuffer(data, np.uint8), bounds)

    assert ids is None or ids.size == num


def test_packed_ids_are_refused_if_a_byte_is_missing_or_too_many() -> None:
    ids = np.arange(0, 1000, 7, dtype=np.int64)
    bounds = bounds_of(ids.size, [50])
    packed = pack_ids(ids, bounds)
    assert packed is not None

    for length in range(packed.size):
        assert unpack_ids(packed[:length], bounds) is None
    assert unpack_ids(np.append(packed, np.uint8(0)), bounds) is None
    wide = packed.copy()
    wide[8] = 65
    assert unpack_ids(wide, bounds) is None


def test_ids_are_sorted_inside_their_shard() -> None:
    ids = np.array([5, -3, 4, 9, 2, 2], np.int64)
    bounds = np.array([0, 3, 3, 6], np.int64)

    order = sort_within_shards(ids, bounds)

    assert ids[order].tolist() == [4, 5, -3, 2, 2, 9]


@given(ids=IDS, cuts=st.lists(st.integers(0, 100), max_size=4))
def test_each_shard_is_sorted_as_numpy_sorts_it(ids: list[int], cuts: list[int]) -> None:
    keys = np.array(ids, np.int64)
    bounds = bounds_of(keys.size, cuts)

    order = sort_within_shards(keys, bounds)

    parts = [keys.view(np.uint64)[a:b] for a, b in itertools.pairwise(bounds)]
    expected = np.concatenate([np.sort(part) for part in parts]).view(np.int64)
    assert keys[order].tolist() == expected.tolist()
    assert sorted(order.tolist()) == list(range(keys.size))
    assert are_sorted_within_shards(keys[order], bounds)
    assert are_sorted_within_shards(keys, bounds) == (keys.tolist() == expected.tolist())


def test_ids_with_their_feature_in_the_high_bits_are_sorted() -> None:
    random = np.random.default_rng(3)
    keys = (random.integers(0, 26, 50_000) << 52) | random.integers(0, 1 << 30, 50_000)

    order = sort_within_shards(keys, np.array([0, keys.size]))

    np.testing.assert_array_equal(keys[order], np.sort(keys))


@given(
    num=st.sampled_from([0, 1, 7, 200]),
    dim=st.sampled_from([1, 3, 8, 16, 100, 5000]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_what_is_left_is_added_and_kept_as_in_numpy(num: int, dim: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal((num, dim)).astype(np.float32)
    values *= np.float32(10.0) ** random.integers(-12, 6, (num, 1)).astype(np.float32)
    left = random.standard_normal((num + 50, dim)).astype(np.float32)
    slots = random.permutation(num + 50)[:num]
    total = left[slots] + values
    expected = encode_rows(total, "int8")
    kept = left.copy()
    kept[slots] = total - decode_rows(expected, "int8")

    encoded = encode_with_rest(values, left, slots, "int8")

    np.testing.assert_array_equal(encoded.rows, expected.rows)
    assert encoded.scales is not None
    np.testing.assert_array_equal(encoded.scales, expected.scales)
    np.testing.assert_array_equal(left, kept)


def test_rows_of_another_number_than_slots_are_refused() -> None:
    with pytest.raises(RowShapeError):
        encode_with_rest(
            np.zeros((2, 3), np.float32), np.zeros((9, 3), np.float32), np.arange(3), "int8"
        )


@pytest.mark.parametrize("width", [0, 1, 31, 32, 33, 62, 63])
def test_ids_whose_differences_have_a_width_come_back(width: int) -> None:
    random = np.random.default_rng(width)
    for num in (1, 2, 32, 33, 34, 100):
        steps = random.integers(0, 2, num).astype(np.uint64) << np.uint64(width)
        steps |= random.integers(0, 1 << width, num).astype(np.uint64)
        ids, bounds = np.cumsum(steps, dtype=np.uint64).view(np.int64), np.array([0, num])
        packed = pack_ids(ids, bounds)
        if packed is not None:
            assert packed.nbytes < ids.nbytes
            unpacked = unpack_ids(packed, bounds)
            assert unpacked is not None
            assert unpacked.tolist() == ids.tolist()
        else:
            assert num < 34 or width > 50


def test_the_kernels_can_be_compiled_beforehand() -> None:
    warm_codecs()
