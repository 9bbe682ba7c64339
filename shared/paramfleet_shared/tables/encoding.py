"""Rows and ids as they travel: in fewer bytes where a job asks for it.

``codecs`` has a record for each format of numbers. Values are rounded to the nearest, ties to
even, or where a format's record says ``chance`` and a salt is given, by chance, so that a value
is right on average. A finite value that a format can't hold becomes the largest finite one of
its sign; an infinity or NaN stays one, and in a format with scales makes all of its row NaN.
The parts of a vector of its own, without rows, are encoded as rows of ``DENSE_WIDTH`` values.

All of it runs without the GIL and leaves its arguments as they are. Kernels for
numbers handle some gigabytes of float32 a second on one core.

Shape legend: n = rows or ids, D = row width, P = values of a vector.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.catalog import CODECS, WIRE_DTYPES, WireDtype
from paramfleet_shared.tables.codecs.record import DENSE_WIDTH, Codec, Encoded
from paramfleet_shared.tables.kernels.basics import sorting
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.codecs.finite import any_reaches
from paramfleet_shared.tables.kernels.codecs.narrow import ROOM, pack, unpack
from paramfleet_shared.tables.memory.shapes import check_array

__all__ = [
    "DENSE_WIDTH",
    "MAX_KNOWN_IDS",
    "WIRE_DTYPES",
    "Encoded",
    "WireDtype",
    "answer_dtype",
    "are_bounds",
    "are_sorted_within_shards",
    "buffer_for",
    "decode_rows",
    "encode_rows",
    "encode_with_rest",
    "encoded_bytes",
    "is_finite",
    "narrowest",
    "num_nonfinite",
    "pack_ids",
    "scale_shape",
    "sort_within_shards",
    "stored_dtype",
    "unpack_ids",
    "warm_codecs",
]

MAX_KNOWN_IDS = 1 << 22
"""Ids of a table that a pserver knows by numbers of one worker: 32 MiB."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""Bits of numbers, by their bytes."""

_FEW_BOUNDS = 64
"""Bounds that Python has compared before numpy has begun to."""


def narrowest(dtype: WireDtype, dim: int) -> WireDtype:
    """Return how rows of ``dim`` values travel best where ``dtype`` was asked for.

    A scale of its own takes a byte: rows of one value are no smaller in 8 bits than in
    bfloat16, which is the more precise.
    """
    return _named(CODECS[dtype].one_value if dim == 1 else None, dtype)


def answer_dtype(dtype: WireDtype) -> WireDtype:
    """Return how values are answered where differences of them travel in ``dtype``."""
    return _named(CODECS[dtype].answers, dtype)


def stored_dtype(dtype: WireDtype) -> str:
    """Return the numpy dtype of encoded rows."""
    return CODECS[dtype].stored


def scale_shape(shape: tuple[int, ...]) -> tuple[int]:
    """Return the shape of the scales of rows [n, D] or a vector [P]."""
    return (shape[0],) if len(shape) == 2 else (-(-shape[0] // DENSE_WIDTH),)


def encoded_bytes(shape: tuple[int, ...], dtype: WireDtype) -> int:
    """Return the bytes that rows [n, D] or a vector [P] take as they travel."""
    codec = CODECS[dtype]
    scales = scale_shape(shape)[0] if codec.has_scales else 0
    return math.prod(shape) * np.dtype(codec.stored).itemsize + scales


def buffer_for(shape: tuple[int, ...], dtype: WireDtype) -> Encoded:
    """Return uninitialised memory for rows [n, D] or a vector [P]."""
    codec = CODECS[dtype]
    scales = np.empty(scale_shape(shape), np.uint8) if codec.has_scales else None
    return Encoded(np.empty(shape, codec.stored), scales)


def encode_rows(
    values: NDArray[np.float32],
    dtype: WireDtype,
    *,
    out: Encoded | None = None,
    salt: int | None = None,
) -> Encoded:
    """Return rows, or a vector, as they travel.

    Args:
        values: float32 [n, D] or [P].
        dtype: How; ``float32`` returns ``values`` themselves, without ``out``.
        out: Contiguous memory to fill, as of ``buffer_for``; None for new memory.
        salt: Of 32 bits: formats that can, round by chance then, for each salt in another
            way; None rounds to the nearest, as the others always do.

    Raises:
        RowShapeError: if ``values`` are not float32.
    """
    check_array(values, np.float32, (-1,) * values.ndim, table="")
    if dtype == "float32" and out is None:
        return Encoded(values)
    buffer = buffer_for(values.shape, dtype) if out is None else out
    flat = as_input(values, np.float32).reshape(-1)
    numbers, codec = buffer.rows.reshape(-1), CODECS[dtype]
    if salt is None or codec.dither is None:
        codec.encode(flat, numbers, buffer.scales, _width(values.shape))
    else:
        codec.dither(flat, numbers, salt)
    return buffer


def decode_rows(
    encoded: Encoded, dtype: WireDtype, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return what was encoded, as far as the encoding kept it: float32, of the same shape.

    Args:
        encoded: As ``encode_rows`` returns it, checked by whoever read it off the wire.
        dtype: How it was encoded; ``float32`` returns the rows themselves, without ``out``.
        out: float32, contiguous, of the rows' shape, to fill; None for new memory.
    """
    rows, scales = encoded
    codec = CODECS[dtype]
    assert rows.dtype == codec.stored, (rows.dtype, dtype)
    if dtype == "float32" and out is None:
        return rows
    values = np.empty(rows.shape, np.float32) if out is None else out
    numbers = as_input(rows, rows.dtype).reshape(-1)
    codes = None if scales is None else as_input(scales, np.uint8)
    codec.decode(numbers, codes, values.reshape(-1), _width(rows.shape))
    return values


def encode_with_rest(
    values: NDArray[np.float32],
    left: NDArray[np.float32],
    slots: NDArray[np.int64],
    dtype: WireDtype,
) -> Encoded:
    """Return rows plus what is left of former ones as they travel; keep what is left now.

    The same bits as ``encode_rows`` of the sums; ``left[slots]`` becomes the sums less
    what they decode to.

    Args:
        values: float32 [n, D].
        left: float32 [rows, D], contiguous; changed.
        slots: int64 [n], from 0, below ``rows``, no two the same.
        dtype: How; a format whose rounding is ``feedback``.

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    dim = left.shape[1]
    check_array(left, np.float32, (-1, -1), table="", in_place=True)
    check_array(slots, np.int64, (-1,), table="")
    check_array(values, np.float32, (slots.size, dim), table="")
    buffer, feed_back = buffer_for(values.shape, dtype), CODECS[dtype].feed_back
    assert feed_back is not None, f"{dtype} keeps nothing"
    rests, flat = left.reshape(-1), as_input(values, np.float32).reshape(-1)
    sent = (buffer.rows.reshape(-1), buffer.scales)
    feed_back(rests, as_input(slots, np.int64), flat, sent, dim)
    return buffer


def is_finite(encoded: Encoded, dtype: WireDtype, *, log2: int = 128) -> bool:
    """Return whether every number is below 2^``log2`` in size; with 128 all finite ones are.

    Where rows have scales they are judged by the most that a row of such a scale can hold. A
    number that the format doesn't have, such as -128 in ``int8``, is refused with any limit.
    """
    codec = CODECS[dtype]
    if codec.exponent is not None:
        mask, bias, place = codec.exponent
        return not _reaches(encoded, mask, min(max(log2 + bias, 0) << place, mask))
    if np.count_nonzero(_beyond(encoded, codec, log2)):
        return False
    if codec.least is not None and encoded.rows.min(initial=0) < codec.least:
        return False
    return codec.nan is None or not _reaches(encoded, codec.nan, codec.nan)


def num_nonfinite(encoded: Encoded, dtype: WireDtype, *, log2: int = 128) -> int:
    """Return how many numbers, or rows that have scales, ``is_finite`` refuses."""
    codec = CODECS[dtype]
    if codec.exponent is not None:
        numbers = decode_rows(encoded, dtype).astype(np.float64)
        return int(np.count_nonzero(~(np.abs(numbers) < 2.0**log2)))
    refused = _beyond(encoded, codec, log2)
    if encoded.rows.size:
        is_none = np.isnan(decode_rows(encoded, dtype))
        if codec.least is not None:
            is_none |= encoded.rows < codec.least
        starts = np.arange(0, is_none.size, _width(encoded.rows.shape))
        refused |= np.logical_or.reduceat(is_none.reshape(-1), starts)
    return int(np.count_nonzero(refused))


def _reaches(encoded: Encoded, mask: int, least: int) -> bool:
    """Return whether a number's bits are ``least`` or more under ``mask``."""
    rows = as_input(encoded.rows, encoded.rows.dtype).reshape(-1)
    bits = rows.view(_UNSIGNED[rows.itemsize])
    return bool(any_reaches(bits, bits.dtype.type(mask), bits.dtype.type(least)))


def _beyond(encoded: Encoded, codec: Codec, log2: int) -> NDArray[np.bool_]:
    """Return which rows' scales can hold numbers of 2^``log2`` or more, or are NaN."""
    assert codec.largest_of is not None, "it has scales"
    assert encoded.scales is not None, "it has scales"
    beyond: NDArray[np.bool_] = ~(codec.largest_of(encoded.scales) < 2.0**log2)
    return beyond


def sort_within_shards(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order that sorts ids, as if unsigned, inside each shard: int64 [n].

    Args:
        ids: int64 [n], sorted by shard.
        offsets: int64 [shards + 1]: the bounds of the shards.
    """
    order = np.empty(ids.size, np.int64)
    keys, bounds = as_input(ids, np.int64).view(np.uint64), as_input(offsets, np.int64)
    sorting.order_within(keys, bounds, order)
    return order


def are_sorted_within_shards(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> bool:
    """Return whether ids rise inside each shard; arguments as of ``sort_within_shards``."""
    keys, bounds = as_input(ids, np.int64).view(np.uint64), as_input(offsets, np.int64)
    return bool(sorting.are_sorted(keys, bounds))


def pack_ids(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    """Return the differences between neighbouring ids in few bits: uint8 [bytes].

    Any ids can be packed; those sorted inside each shard become small.

    Args:
        ids: int64 [n].
        offsets: int64 [shards + 1], rising from 0 to n.

    Returns:
        None if that takes no less than the ids themselves.
    """
    keys = as_input(ids, np.int64).view(np.uint64)
    bounds = as_input(offsets, np.int64)
    packed = np.empty(ids.nbytes + ROOM, np.uint8)
    num_bytes = pack(keys, bounds, packed)
    return packed[:num_bytes] if num_bytes else None


def are_bounds(offsets: NDArray[np.int64], num: int) -> bool:
    """Return whether offsets, at least one, rise from 0 to ``num``."""
    if len(offsets) > _FEW_BOUNDS:
        return bool(
            offsets[0] == 0 and offsets[-1] == num and not np.any(offsets[1:] < offsets[:-1])
        )
    before = 0
    bounds = offsets.tolist()
    for bound in bounds:
        if bound < before:
            return False
        before = bound
    return before == num and bounds[0] == 0


def unpack_ids(
    packed: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return what ``pack_ids`` packed: int64 [n]; None if it didn't pack this.

    Args:
        packed: uint8 [bytes], of any content.
        offsets: int64 [shards + 1], ``are_bounds`` of n; the caller has seen to it, and
            to n being a number of ids that it has memory for.
    """
    ids = np.empty(int(offsets[-1]), np.int64)
    bounds = as_input(offsets, np.int64)
    if not unpack(as_input(packed, np.uint8), bounds, ids.view(np.uint64)):
        return None
    return ids


def warm_codecs(dtypes: Sequence[WireDtype] = WIRE_DTYPES) -> None:
    """Compile the kernels of the codecs, or load them from the cache; idempotent.

    Args:
        dtypes: How numbers travel. Where that is in fewer bits, ids are packed.
    """
    values, bounds = np.zeros((1, 1), np.float32), np.array([0, 0], np.int64)
    for dtype in dtypes:
        encoded = encode_rows(values, dtype)
        decode_rows(encoded, dtype)
        is_finite(encoded, dtype)
        encode_rows(values, dtype, salt=1)
        if CODECS[dtype].feed_back is not None:
            encode_with_rest(values, values, bounds[:1], dtype)
    if all(dtype == "float32" for dtype in dtypes):
        return
    ids = np.arange(64, dtype=np.int64)
    bounds[1] = ids.size
    packed = pack_ids(ids, bounds)
    assert packed is not None, "neighbours pack well"
    unpack_ids(packed, bounds)
    sort_within_shards(ids, bounds)
    are_sorted_within_shards(ids, bounds)


def _named(name: str | None, default: WireDtype) -> WireDtype:
    return next((dtype for dtype in CODECS if dtype == name), default)


def _width(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else DENSE_WIDTH
