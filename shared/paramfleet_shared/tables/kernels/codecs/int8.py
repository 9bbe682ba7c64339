"""Rows in 8 bits a value and an 8-bit scale a row.

A row's values are its scale times whole numbers in -127..127. A scale is a float without a
sign, of 6 bits of exponent and 2 of fraction. Of code ``c``, with ``e = c >> 2`` and
``m = c & 3``:

    e > 0:  (1 + m / 4) * 2^(e - 40)
    e = 0:  m / 4 * 2^-39
    255:    NaN

It is the least one that is at least a 127th of the row's largest magnitude: by less than a
quarter above it, so that a value is kept within 0.5 % of that magnitude, or within 2^-42 if
all are smaller than 2^-32. What is beyond 127 times the largest scale, some 1.6e9, becomes
that. An infinity or NaN makes the whole row NaN.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.bytelanes import (
    greatest,
    largest,
    load_bytes,
    spread_float,
    store_bytes,
)
from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.lanes import LANES, load_lanes, store_lanes
from paramfleet_shared.tables.kernels.rows import AHEAD, prefetch_row

__all__ = ["NO_SCALE", "feed_back_int8", "from_int8", "largest_of", "to_int8"]

NO_SCALE = 255
"""The code of NaN."""

_U = np.uint32
_ABS, _INF = _U(0x7FFFFFFF), _U(0x7F800000)
_NO_SCALE, _MOST = _U(NO_SCALE), _U(NO_SCALE - 1)
_SHIFT = _U(21)
"""Bits of a float32's fraction that a scale lacks."""
_BELOW = _U((1 << 21) - 1)
_OFFSET = _U((127 - 40) << 2)
"""Between the upper bits of a float32 and the code of a normal scale."""
_LEAST, _STEPS = np.float32(2.0**-39), np.float32(2.0**41)
_LEVELS = np.float32(127.0)
_TO_WHOLE = np.float32(3 * 2.0**22)  # adding and taking it away rounds to a whole number
_0F, _NAN = np.float32(0.0), np.float32(np.nan)


def _scales() -> NDArray[np.float32]:
    """Return what the codes stand for: float32 [256]."""
    exponents, quarters = np.divmod(np.arange(256), 4)
    scales = np.where(exponents > 0, 1 + quarters / 4, quarters / 2)
    codes: NDArray[np.float32] = np.ldexp(scales, exponents - 40).astype(np.float32)
    codes[NO_SCALE] = np.nan
    return codes


_SCALES = _scales()
_FACTORS = np.divide(1, _SCALES, out=np.zeros_like(_SCALES), where=_SCALES > 0)
"""What values are multiplied by to become whole numbers; 0 where all are 0."""


def largest_of(scales: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the most that rows of these scales can hold, NaN for ``NO_SCALE``."""
    return _SCALES[scales].astype(np.float64) * float(_LEVELS)


@inlined
def _code_of(top: Any) -> Any:
    """Return the code of the scale of a row, given the bits of its largest magnitude."""
    least = np.float32(_U(top).view(np.float32) / _LEVELS)
    steps = np.float32(least * _STEPS)
    code = _U(steps)
    if np.float32(code) < steps and least < _LEAST:
        code += _U(1)
    if least >= _LEAST:
        code = _U(((_U(least.view(np.uint32)) + _BELOW) >> _SHIFT) - _OFFSET)
    code = min(code, _MOST)
    if top >= _INF:
        code = _NO_SCALE
    return code


@inlined
def _whole(value: Any, factor: Any) -> Any:
    """Return a value as a whole number in -127..127, as a float: ``store_bytes`` of one."""
    scaled = np.float32(value * factor)
    cut = min(max(scaled, -_LEVELS), _LEVELS)
    return np.float32(np.float32(cut + _TO_WHOLE) - _TO_WHOLE)


@inlined
def _top_of(values: Any, start: Any, stop: Any) -> Any:
    """Return the bits of the largest magnitude; NaN is larger than all."""
    whole = stop - (stop - start) % LANES
    most = spread_float(_0F)
    for j in range(start, whole, LANES):
        most = greatest(most, load_lanes(values, j))
    top = largest(most)
    for j in range(whole, stop):
        top = max(top, _U(_U(np.float32(values[j]).view(np.uint32)) & _ABS))
    return top


@kernel
def to_int8(
    values: NDArray[np.float32],
    out: NDArray[np.int8],
    scales: NDArray[np.uint8],
    width: int,
) -> None:
    """Narrow rows of ``width`` floats, the last one perhaps shorter; all flat."""
    for row in range(scales.size):
        start = row * width
        stop = min(start + width, values.size)
        code = _code_of(_top_of(values, start, stop))
        factor = _FACTORS[code]
        scales[row] = np.uint8(code)
        if code == _NO_SCALE:
            out[start:stop] = 0
            continue
        whole = stop - (stop - start) % LANES
        for j in range(start, whole, LANES):
            store_bytes(out, j, load_lanes(values, j) * factor)
        for j in range(whole, stop):
            out[j] = np.int8(_whole(values[j], factor))


@kernel
def from_int8(
    rows: NDArray[np.int8],
    scales: NDArray[np.uint8],
    out: NDArray[np.float32],
    width: int,
) -> None:
    """Widen what ``to_int8`` made; all flat."""
    for row in range(scales.size):
        start = row * width
        stop = min(start + width, out.size)
        whole = stop - (stop - start) % LANES
        scale = _SCALES[scales[row]]
        for j in range(start, whole, LANES):
            store_lanes(out, j, load_bytes(rows, j) * scale)
        for j in range(whole, stop):
            out[j] = np.float32(np.float32(rows[j]) * scale)


@kernel
def feed_back_int8(
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
        whole = dim - dim % LANES
        most = spread_float(_0F)
        for j in range(0, whole, LANES):
            total = load_lanes(left, there + j) + load_lanes(grads, here + j)
            store_lanes(left, there + j, total)
            most = greatest(most, total)
        top = largest(most)
        for j in range(whole, dim):
            left[there + j] += grads[here + j]
            top = max(top, _U(_U(np.float32(left[there + j]).view(np.uint32)) & _ABS))
        code = _code_of(top)
        scale, factor = _SCALES[code], _FACTORS[code]
        scales[i] = np.uint8(code)
        if code == _NO_SCALE:
            sent[here : here + dim] = 0
            left[there : there + dim] = _NAN
            continue
        for j in range(0, whole, LANES):
            total = load_lanes(left, there + j)
            number = store_bytes(sent, here + j, total * factor)
            store_lanes(left, there + j, total - number * scale)
        for j in range(whole, dim):
            number = _whole(left[there + j], factor)
            sent[here + j] = np.int8(number)
            left[there + j] -= np.float32(number * scale)
