"""Rows and ids as they travel: in fewer bytes where a job asks for it.

``float32`` travels as it is. ``float16`` and ``bfloat16`` take half: each value is
rounded to the nearest, ties to even, or with a salt by chance, so that it is right on
average (``kernels.dither``). ``int8`` takes a quarter and a byte a row: values are
multiples of the row's scale, a small float that is at least a 127th of the row's largest
magnitude (``kernels.int8`` says which). A finite value that a format can't hold becomes the
largest finite one of its sign; an infinity or NaN stays one, and in int8 makes all of its
row NaN. The parts of a vector of its own, without rows, are encoded as rows of
``DENSE_WIDTH`` values.

All of it runs without the GIL and leaves its arguments as they are. Kernels for
numbers handle some gigabytes of float32 a second on one core.

Shape legend: n = rows or ids, D = row width, P = values of a vector.
"""

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics import sorting
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.codecs import dither, int8
from paramfleet_shared.tables.kernels.codecs import narrow as codecs
from paramfleet_shared.tables.kernels.codecs.finite import any_reaches
from paramfleet_shared.tables.routing import all_finite
from paramfleet_shared.tables.rowstore import check_array

__all__ = [
    "DENSE_WIDTH",
    "MAX_KNOWN_IDS",
    "WIRE_DTYPES",
    "Encoded",
    "WireDtype",
    "are_bounds",
    "are_sorted_within_shards",
    "decode_rows",
    "encode_rows",
    "encode_with_rest",
    "is_finite",
    "narrowest",
    "num_nonfinite",
    "pack_ids",
    "room_bytes",
    "room_for",
    "scale_shape",
    "sort_within_shards",
    "stored_dtype",
    "unpack_ids",
    "warm_codecs",
]

WireDtype = Literal["float32", "float16", "bfloat16", "int8"]
"""How the numbers of a part travel."""

WIRE_DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)

DENSE_WIDTH = 256
"""Values of a vector that share one int8 scale."""

MAX_KNOWN_IDS = 1 << 22
"""Ids of a table that a pserver knows by numbers of one worker: 32 MiB."""

_STORED: dict[WireDtype, str] = {
    "float32": "float32", "float16": "float16", "bfloat16": "uint16", "int8": "int8",
}  # fmt: skip

_FEW_BOUNDS = 64
"""Bounds that Python has compared before numpy has begun to."""

_ALL_ONES: dict[str, int] = {"float16": 0x7C00, "uint16": 0x7F80}
"""The exponent of an infinity or NaN."""

_BIASES: dict[str, tuple[int, int]] = {"float16": (15, 10), "uint16": (127, 7)}
"""What is added to an exponent, and where it lies."""


class Encoded(NamedTuple):
    """Rows or a vector as they travel."""

    rows: NDArray[Any]
    """float32, float16, uint16 (the bits of bfloat16) or int8; [n, D] or [P]."""
    scales: NDArray[np.uint8] | None = None
    """int8 only: codes of scales, [n], or [P / ``DENSE_WIDTH`` rounded up]."""

    def part(self, where: slice) -> "Encoded":
        """Return some of the rows, as views."""
        return Encoded(self.rows[where], None if self.scales is None else self.scales[where])


def narrowest(dtype: WireDtype, dim: int) -> WireDtype:
    """Return how rows of ``dim`` values travel best where ``dtype`` was asked for.

    A scale of its own takes a byte: rows of one value are no smaller in int8 than in
    bfloat16, which is the more precise.
    """
    return "bfloat16" if dtype == "int8" and dim == 1 else dtype


def stored_dtype(dtype: WireDtype) -> str:
    """Return the numpy dtype of encoded rows."""
    return _STORED[dtype]


def scale_shape(shape: tuple[int, ...]) -> tuple[int]:
    """Return the shape of the int8 scales of rows [n, D] or a vector [P]."""
    return (shape[0],) if len(shape) == 2 else (-(-shape[0] // DENSE_WIDTH),)


def room_bytes(shape: tuple[int, ...], dtype: WireDtype) -> int:
    """Return the bytes that rows [n, D] or a vector [P] take as they travel."""
    scales = scale_shape(shape)[0] if dtype == "int8" else 0
    return math.prod(shape) * np.dtype(_STORED[dtype]).itemsize + scales


def room_for(shape: tuple[int, ...], dtype: WireDtype) -> Encoded:
    """Return uninitialised memory for rows [n, D] or a vector [P]."""
    scales = np.empty(scale_shape(shape), np.uint8) if dtype == "int8" else None
    return Encoded(np.empty(shape, _STORED[dtype]), scales)


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
        out: Contiguous memory to fill, as of ``room_for``; None for new memory.
        salt: Of 32 bits: 16-bit formats round by chance then, for each salt in another
            way; None rounds to the nearest, as int8 always does.

    Raises:
        RowShapeError: if ``values`` are not float32.
    """
    check_array(values, np.float32, (-1,) * values.ndim, table="")
    if dtype == "float32" and out is None:
        return Encoded(values)
    room = room_for(values.shape, dtype) if out is None else out
    flat = as_input(values, np.float32).reshape(-1)
    rows = room.rows.reshape(-1)
    if dtype == "float32":
        rows[:] = flat
    elif dtype != "int8":
        _to_halves(flat, rows.view(np.uint16), salt, is_float16=dtype == "float16")
    else:
        assert room.scales is not None, "int8 has scales"
        int8.to_int8(flat, rows, room.scales, _width(values.shape))
    return room


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
    assert rows.dtype == _STORED[dtype], (rows.dtype, dtype)
    if dtype == "float32" and out is None:
        return rows
    values = np.empty(rows.shape, np.float32) if out is None else out
    flat = values.reshape(-1)
    source = as_input(rows, rows.dtype).reshape(-1)
    if dtype == "float32":
        flat[:] = source
    elif dtype == "bfloat16":
        codecs.from_bfloat16(source, flat.view(np.uint32))
    elif dtype == "float16":
        codecs.from_float16(source.view(np.uint16), flat, flat.view(np.uint32))
    else:
        assert scales is not None, "int8 has scales"
        int8.from_int8(source, as_input(scales, np.uint8), flat, _width(rows.shape))
    return values


def encode_with_rest(
    values: NDArray[np.float32], left: NDArray[np.float32], slots: NDArray[np.int64]
) -> Encoded:
    """Return rows plus what is left of former ones, as int8; keep what is left now.

    The same bits as ``encode_rows`` of the sums; ``left[slots]`` becomes the sums less
    what they decode to.

    Args:
        values: float32 [n, D].
        left: float32 [rows, D], contiguous; changed.
        slots: int64 [n], from 0, below ``rows``, no two the same.

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    dim = left.shape[1]
    check_array(left, np.float32, (-1, -1), table="", in_place=True)
    check_array(slots, np.int64, (-1,), table="")
    check_array(values, np.float32, (slots.size, dim), table="")
    room = room_for(values.shape, "int8")
    assert room.scales is not None, "int8 has scales"
    rests, flat = left.reshape(-1), as_input(values, np.float32).reshape(-1)
    sent = (room.rows.reshape(-1), room.scales)
    int8.feed_back_int8(rests, as_input(slots, np.int64), flat, sent, dim)
    return room


def is_finite(encoded: Encoded, *, log2: int = 128) -> bool:
    """Return whether every number is below 2^``log2`` in size; with 128 all finite ones are."""
    if encoded.rows.dtype == np.float32:
        return all_finite(encoded.rows, log2=log2)
    if encoded.scales is not None:
        return num_nonfinite(encoded, log2=log2) == 0
    name = encoded.rows.dtype.name
    exponent = np.uint16(_ALL_ONES[name])
    bias, place = _BIASES[name]
    least = np.uint16(min(max(log2 + bias, 0) << place, _ALL_ONES[name]))
    bits = as_input(encoded.rows, encoded.rows.dtype).reshape(-1).view(np.uint16)
    return not any_reaches(bits, exponent, least)


def num_nonfinite(encoded: Encoded, *, log2: int = 128) -> int:
    """Return how many numbers (int8: rows, by what they can hold) ``is_finite`` refuses."""
    if encoded.scales is not None:
        return int(np.count_nonzero(~(int8.largest_of(encoded.scales) < 2.0**log2)))
    rows = encoded.rows
    is_bfloat = rows.dtype == np.uint16
    numbers = (rows.astype(np.uint32) << 16).view(np.float32) if is_bfloat else rows
    return int(np.count_nonzero(~(np.abs(numbers.astype(np.float64)) < 2.0**log2)))


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
    packed = np.empty(ids.nbytes + codecs.ROOM, np.uint8)
    num_bytes = codecs.pack(keys, bounds, packed)
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
    if not codecs.unpack(as_input(packed, np.uint8), bounds, ids.view(np.uint64)):
        return None
    return ids


def warm_codecs() -> None:
    """Compile the kernels of this room, or load them from the cache; idempotent."""
    values, bounds = np.zeros((1, 1), np.float32), np.array([0, 0], np.int64)
    for dtype in WIRE_DTYPES:
        encoded = encode_rows(values, dtype)
        decode_rows(encoded, dtype)
        is_finite(encoded)
        encode_rows(values, dtype, salt=1)
    encode_with_rest(values, values, bounds[:1])
    ids = np.arange(64, dtype=np.int64)
    bounds[1] = ids.size
    packed = pack_ids(ids, bounds)
    assert packed is not None, "neighbours pack well"
    unpack_ids(packed, bounds)
    sort_within_shards(ids, bounds)
    are_sorted_within_shards(ids, bounds)


def _to_halves(
    flat: NDArray[np.float32], rows: NDArray[np.uint16], salt: int | None, *, is_float16: bool
) -> None:
    """Narrow to 16 bits: the nearest, or by chance."""
    bits = flat.view(np.uint32)
    if salt is None and is_float16:
        codecs.to_float16(flat, bits, rows)
    elif salt is None:
        codecs.to_bfloat16(bits, rows)
    elif is_float16:
        dither.dither_float16(flat, bits, rows, np.uint32(salt))
    else:
        dither.dither_bfloat16(bits, rows, np.uint32(salt))


def _width(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else DENSE_WIDTH
