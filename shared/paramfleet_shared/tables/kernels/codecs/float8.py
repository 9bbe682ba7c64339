"""Rows in 8-bit floats and an 8-bit scale a row.

The floats are e4m3 as the Open Compute Project defines them (OFP8): a sign, 4 bits of exponent
with a bias of 7, and 3 of fraction; no infinity, 448 the largest number, 2^-9 the least, and
0x7F and 0xFF NaN. A scale is a power of two, of 8 bits of exponent with a bias of 127, 255
being NaN (E8M0, as in OCP's Microscaling Formats).

A row's scale is the least with which 448 is at least the row's largest magnitude, from 2^-126
to 2^119. Both multiplications are exact, so a value is kept within a 16th of itself, or
within 2^-10 times the scale, which is less than 2^-17 of the row's largest magnitude. What is
beyond 448 times the largest scale, some 3e38, becomes that. An infinity or NaN makes the whole
row NaN.

The loops are plain and free of calls, so that LLVM turns them into vectors; they work on
slices, in which it needn't ask where an index counts from. Bits of numbers are int8.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.rows import AHEAD, prefetch_row

__all__ = ["LARGEST", "NAN", "feed_back_float8", "from_float8", "largest_of", "to_float8"]

LARGEST = 448.0

NAN = 0x7F
"""The bits of NaN, without the sign."""

_U = np.uint32
_ABS, _INF, _FRACTION = _U(0x7FFFFFFF), _U(0x7F800000), _U(23)
_ABOVE = _U(0x001FFFFF)
"""Added to a float's bits it carries into the exponent if the fraction is above 448's."""
_SMALLER, _LEAST, _MOST, _NO_SCALE = _U(8), _U(1), _U(246), _U(255)
_FACTORS = _U(254)
"""A code and that of the scale's inverse together."""
_BIAS = _U(120 << 23)  # (127 - 7) << 23
_HALF, _1, _20, _24 = _U(0x7FFFF), _U(1), _U(20), _U(24)
_NORMAL = _U(121 << 23)  # 2^-6, the least normal number
_TOP = _U(0x43E00000)  # 448
_TOP_BITS, _SIGN, _NAN_BITS, _COUNTED = _U(0x7E), _U(0x80), _U(NAN), _U(8)
_STEP, _STEPS = np.float32(2.0**-9), np.float32(2.0**9)
_TO_WHOLE = np.float32(2.0**23)
_NAN = np.float32(np.nan)


def _scales() -> NDArray[np.float32]:
    """Return what the codes stand for: float32 [256]."""
    exponents = np.arange(255, dtype=np.int64) - 127
    scales: NDArray[np.float32] = np.append(np.ldexp(1.0, exponents), np.nan).astype(np.float32)
    return scales


_SCALES = _scales()


def largest_of(scales: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the most that rows of these scales can hold, NaN for the code of NaN."""
    return _SCALES[scales].astype(np.float64) * LARGEST


@inlined
def _code_of(top: Any) -> Any:
    """Return the code of the scale of a row, given the bits of its largest magnitude."""
    code = max(_U(top + _ABOVE) >> _FRACTION, _SMALLER + _LEAST) - _SMALLER
    code = min(code, _MOST)
    if top >= _INF:
        code = _NO_SCALE
    return code


@inlined
def _factor_of(code: Any) -> Any:
    """Return what values are multiplied by to become numbers of the format."""
    return _U((_FACTORS - min(code, _MOST)) << _FRACTION).view(np.float32)


@inlined
def _number(scaled: Any) -> Any:
    """Return the bits of the nearest number, ties to even."""
    b = _U(np.float32(scaled).view(np.uint32))
    m = b & _ABS
    r = _U(m - _BIAS + _HALF + ((m >> _20) & _1)) >> _20
    if m > _TOP:
        r = _TOP_BITS
    if m < _NORMAL:  # whole steps of 2^-9
        r = _U(np.int32(np.float32(np.float32(abs(scaled) * _STEPS) + _TO_WHOLE) - _TO_WHOLE))
    return _U(r | ((b >> _24) & _SIGN))


@inlined
def _value(bits: Any) -> Any:
    """Return what bits stand for."""
    m = bits & _NAN_BITS
    value = _U((m << _20) + _BIAS).view(np.float32)
    if m < _COUNTED:
        value = np.float32(np.float32(np.int32(m)) * _STEP)
    if m == _NAN_BITS:
        value = _NAN
    return _U(_U(np.float32(value).view(np.uint32)) | ((bits & _SIGN) << _24)).view(np.float32)


@uncounted
def to_float8(
    values: NDArray[np.float32],
    out: NDArray[np.int8],
    scales: NDArray[np.uint8],
    width: int,
) -> None:
    """Narrow rows of ``width`` floats, the last one perhaps shorter; all flat."""
    for row in range(scales.size):
        start = row * width
        stop = min(start + width, values.size)
        given, numbers = values[start:stop], out[start:stop]
        top = _U(0)
        for j in range(given.size):
            top = max(top, _U(_U(np.float32(given[j]).view(np.uint32)) & _ABS))
        code = _code_of(top)
        scales[row] = np.uint8(code)
        if code == _NO_SCALE:
            for j in range(numbers.size):
                numbers[j] = np.int8(_NAN_BITS)
            continue
        factor = _factor_of(code)
        for j in range(given.size):
            numbers[j] = np.int8(_number(np.float32(given[j] * factor)))


@uncounted
def from_float8(
    rows: NDArray[np.int8],
    scales: NDArray[np.uint8],
    out: NDArray[np.float32],
    width: int,
) -> None:
    """Widen what ``to_float8`` made; all flat."""
    for row in range(scales.size):
        start = row * width
        stop = min(start + width, out.size)
        numbers, values = rows[start:stop], out[start:stop]
        scale = _SCALES[scales[row]]
        for j in range(values.size):
            values[j] = np.float32(_value(_U(numbers[j])) * scale)


@uncounted
def feed_back_float8(
    left: NDArray[np.float32],
    slots: NDArray[np.int64],
    grads: NDArray[np.float32],
    out: tuple[NDArray[np.int8], NDArray[np.uint8]],
    dim: int,
) -> None:
    """Narrow rows with what was left of former ones, in one pass over memory; all flat.

    Args:
        left: What is left of all rows.
        slots: Where in it the rows of ``grads`` are; no slot twice.
        grads: One row a slot.
        out: Filled: what travels, numbers and scales.
        dim: Width of a row.
    """
    sent, scales = out
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(left, slots[i + AHEAD] * dim, dim)
        here, there = i * dim, slots[i] * dim
        rest, given = left[there : there + dim], grads[here : here + dim]
        numbers = sent[here : here + dim]
        top = _U(0)
        for j in range(dim):
            total = np.float32(rest[j] + given[j])
            rest[j] = total
            top = max(top, _U(_U(np.float32(total).view(np.uint32)) & _ABS))
        code = _code_of(top)
        scales[i] = np.uint8(code)
        if code == _NO_SCALE:
            for j in range(dim):
                numbers[j] = np.int8(_NAN_BITS)
                rest[j] = _NAN
            continue
        factor, scale = _factor_of(code), _SCALES[code]
        for j in range(dim):
            number = _number(np.float32(rest[j] * factor))
            numbers[j] = np.int8(number)
            rest[j] -= np.float32(_value(number) * scale)
