"""Floats in 16 bits, rounded up or down by chance: unbiased, and nothing is to be kept.

A number is rounded up with the probability of how far it lies above its lower neighbour,
so that what arrives is right on average (stochastic rounding: Gupta et al., "Deep Learning
with Limited Numerical Precision", 2015), and one that the format holds stays what it is.
The random bits are a function of a salt and of where a number stands: the same call makes
the same bits on every machine. What a format can't hold becomes its largest finite value;
infinities and NaN stay what they are.

The loops are plain and free of calls, as those of ``codecs``, so that LLVM turns them into
vectors.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel

__all__ = ["dither_bfloat16", "dither_float16"]

_U = np.uint32
_ABS, _INF = _U(0x7FFFFFFF), _U(0x7F800000)
_1, _13, _15, _16 = _U(1), _U(13), _U(15), _U(16)
_BF_ABS, _BF_INF, _BF_QUIET = _U(0x7FFF), _U(0x7F80), _U(0x40)
_BF_BELOW = _U(0xFFFF)
_H_SIGN, _H_QUIET, _H_INF, _H_MAX = _U(0x8000), _U(0x7E00), _U(0x7C00), _U(0x7BFF)
_H_BIAS = _U(0x38000000)  # (127 - 15) << 23
_H_BELOW = _U(0x1FFF)
_H_LEAST = _U(0x38800000)  # 2^-14, the least normal float16
_H_TOP = _U(0x477FE000)  # 65504, the greatest
_H_STEPS = np.float32(2.0**24)
_8 = _U(8)
_CHANCES = np.float32(2.0**-24)
_PLACE, _MIX_1, _MIX_2 = _U(0x9E3779B9), _U(0x21F0AAAD), _U(0x735A2D97)


@inlined
def _random(salt: np.uint32, place: int) -> np.uint32:
    """Return 32 random bits: C. Wellons' lowbias32 of where a number stands, and a salt."""
    x = _U(_U(_U(place) * _PLACE) ^ salt)
    x = _U(_U(x ^ (x >> _16)) * _MIX_1)
    x = _U(_U(x ^ (x >> _15)) * _MIX_2)
    return _U(x ^ (x >> _15))


@kernel
def dither_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16], salt: np.uint32) -> None:
    """Narrow floats, given as their bits."""
    for i in range(out.size):
        b = bits[i]
        m = b & _ABS
        r = _U(b + (_random(salt, i) & _BF_BELOW)) >> _16
        if m < _INF and (r & _BF_ABS) == _BF_INF:
            r -= _1
        if m >= _INF:
            r = b >> _16
        if m > _INF:
            r |= _BF_QUIET
        out[i] = np.uint16(r)


@kernel
def dither_float16(
    values: NDArray[np.float32],
    bits: NDArray[np.uint32],
    out: NDArray[np.uint16],
    salt: np.uint32,
) -> None:
    """Narrow floats to the bits of float16; ``bits`` are those of ``values``."""
    for i in range(out.size):
        b = bits[i]
        m = b & _ABS
        random = _random(salt, i)
        r = _U(m - _H_BIAS + (random & _H_BELOW)) >> _13
        if m > _H_TOP:
            r = _H_MAX
        if m == _INF:
            r = _H_INF
        if m > _INF:
            r = _H_QUIET
        if m < _H_LEAST:  # whole steps of 2^-24, and one more by chance
            steps = np.float32(abs(values[i]) * _H_STEPS)
            whole = np.int32(steps)
            above = np.float32(steps - np.float32(whole))
            chance = np.float32(np.float32(np.int32(random >> _8)) * _CHANCES)
            r = _U(whole)
            if above > chance:
                r += _1
        out[i] = np.uint16(r | ((b >> _16) & _H_SIGN))
