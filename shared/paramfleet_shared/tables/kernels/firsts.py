"""The first value of a row: a pure function of (seed, table name, id, column).

It depends on no order of arrival, number of shards or restart, and it is computed from
integers by exact or correctly rounded operations alone, so that a worker and a pserver
on other hardware make the same bits.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import counter_bits, mix
from paramfleet_shared.tables.kernels.basics.lanes import store_float
from paramfleet_shared.tables.spec import TableSpec, stream_of

__all__ = ["Firsts", "fill_columns", "fill_firsts", "firsts_of"]

CONSTANT, UNIFORM, NORMAL = range(3)

_NOTHING = np.float32(0.0)
_TO_24 = np.uint64(40)
_TO_52 = np.uint64(12)


class Firsts(NamedTuple):
    """An initializer as kernels take it."""

    kind: int
    offset: float
    """The constant, the low end, or the mean."""
    scale: float
    """The width of the range, or the standard deviation."""
    seed: np.uint64
    """Of this table."""
    drawn: tuple[int, int]
    """Which of a new row's values it makes: (first, end); the others are 0."""


def firsts_of(spec: TableSpec) -> Firsts:
    """Return the initializer of a table."""
    initializer, drawn = spec.initializer, spec.drawn
    seed = np.uint64(stream_of(spec.seed, spec.name))
    kind, offset, scale = {
        "zeros": (CONSTANT, 0.0, 0.0),
        "constant": (CONSTANT, initializer.value, 0.0),
        "uniform": (UNIFORM, initializer.low, initializer.high - initializer.low),
        "normal": (NORMAL, initializer.mean, initializer.std),
    }[initializer.kind]
    return Firsts(kind, offset, scale, seed, (drawn.start, drawn.stop))


@inlined
def _logarithm(x: float) -> float:
    """Return ln x for x > 0 within 1e-12, by operations that round alike everywhere."""
    mantissa, exponent = math.frexp(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)  # ln m = 2 artanh s, |s| <= 1/3
    square = s * s
    total = 0.0
    for k in range(25, 0, -2):
        total = total * square + 1.0 / k
    return 2.0 * s * total + exponent * 0.6931471805599453


@inlined
def _normal(bits: np.uint64) -> Any:
    """Return the standard normal quantile of ``bits``, relative error below 1.2e-9.

    P. J. Acklam's rational approximations (2003), one for the middle and one for the
    tails.
    """
    p: Any = (np.float64(bits >> _TO_52) + 0.5) * 2.0**-52  # never 0 or 1
    tail = min(p, 1.0 - p)
    if tail >= 0.02425:
        q = p - 0.5
        r = q * q
        above = -3.969683028665376e01 * r + 2.209460984245205e02
        above = (above * r - 2.759285104469687e02) * r + 1.383577518672690e02
        above = (above * r - 3.066479806614716e01) * r + 2.506628277459239e00
        below = -5.447609879822406e01 * r + 1.615858368580409e02
        below = (below * r - 1.556989798598866e02) * r + 6.680131188771972e01
        below = (below * r - 1.328068155288572e01) * r + 1.0
        return above * q / below
    r = math.sqrt(-2.0 * _logarithm(tail))
    above = -7.784894002430293e-03 * r - 3.223964580411365e-01
    above = (above * r - 2.400758277161838e00) * r - 2.549732539343734e00
    above = (above * r + 4.374664141464968e00) * r + 2.938163982698783e00
    below = 7.784695709041462e-03 * r + 3.224671290700398e-01
    below = (below * r + 2.445134137142996e00) * r + 3.754408661907416e00
    below = below * r + 1.0
    quantile = above / below  # of the lower tail, negative
    return quantile if p < 0.5 else -quantile


@inlined
def fill_columns(firsts: Any, key: Any, rows: Any, row: Any, columns: Any) -> None:
    """Fill ``columns`` = (first, end) of the row at a flat offset with first values."""
    first, end = columns
    offset, scale = np.float32(firsts.offset), np.float32(firsts.scale)
    unit = np.float32(2.0**-24)
    base = mix(key ^ firsts.seed)
    if firsts.kind == CONSTANT:
        for j in range(first, end):
            store_float(rows, row + j, offset)
    elif firsts.kind == UNIFORM:
        for j in range(first, end):
            number = np.float32(np.int32(counter_bits(base, j) >> _TO_24)) * unit
            store_float(rows, row + j, offset + number * scale)
    else:
        for j in range(first, end):
            number = np.float32(_normal(counter_bits(base, j)))
            store_float(rows, row + j, offset + number * scale)


@kernel
def fill_firsts(
    firsts: Firsts, ids: NDArray[np.uint64], rows: NDArray[Any], shape: tuple[int, int]
) -> None:
    """Fill the beginning of each row with its id's first value.

    ``rows`` is flat, ``shape`` = (dim, pitch): numbers of a value and of a row.
    """
    dim, pitch = shape
    first, end = firsts.drawn
    for i in range(ids.size):
        row = i * pitch
        for j in range(first):
            store_float(rows, row + j, _NOTHING)
        fill_columns(firsts, ids[i], rows, row, (first, end))
        for j in range(end, dim):
            store_float(rows, row + j, _NOTHING)


@kernel
def fill_states(
    states: NDArray[np.float32], floats: NDArray[np.float32], start: int, pitch: int
) -> None:
    """Put ``states`` into all rows, from ``start`` on in each of ``pitch`` floats.

    ``floats`` is flat.
    """
    for row in range(start, floats.size, pitch):
        for j in range(states.size):
            floats[row + j] = states[j]
