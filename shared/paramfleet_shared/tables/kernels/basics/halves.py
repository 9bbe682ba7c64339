"""Numbers kept in 16 bits: how they become floats, and floats them.

An array of uint16 holds bfloat16, one of int16 holds float16: arrays of another type make
kernels of their own, compiled when a table first asks for them. Conversions are integer
operations, the same on every machine.

Rounding is to nearest, ties to even, where ``noise`` is 0. Else it is stochastic: up with
the probability of how far the number lies above the lower neighbour, by random bits that
are a function of (noise, column). A float16 saturates: what is beyond 65504 becomes that. A
bfloat16 does where a finite number would be rounded to infinity.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # llvmlite ships no types

__all__ = ["narrowed", "widened"]

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()

# Of a float32, as bits; the last two are the greatest and the least normal float16.
_INFINITY, _TOP_16, _LEAST_NORMAL_16 = 0x7F800000, 0x477FE000, 0x38800000


class _Shape:
    """Types of one number, or of a vector of them."""

    def __init__(self, lanes: int | None) -> None:
        self.lanes = lanes

    def of(self, one: Any) -> Any:
        """Return the type of as many ``one``."""
        return one if self.lanes is None else ir.VectorType(one, self.lanes)

    def constant(self, number: Any, one: Any = _I32) -> Any:
        """Return ``number`` in every lane."""
        return ir.Constant(
            self.of(one), number if self.lanes is None else [number] * self.lanes
        )

    def spread(self, builder: Any, value: Any) -> Any:
        """Return a scalar in every lane."""
        if self.lanes is None:
            return value
        undefined = ir.Constant(self.of(value.type), ir.Undefined)
        first = builder.insert_element(undefined, value, _I32(0))
        return builder.shuffle_vector(first, undefined, self.constant(0))


def widened(builder: Any, bits: Any, lanes: int | None, *, is_bfloat: bool) -> Any:
    """Return the float32 of 16 bits each."""
    shape = _Shape(lanes)
    c = shape.constant
    word = builder.zext(bits, shape.of(_I32))
    if is_bfloat:
        return builder.bitcast(builder.shl(word, c(16)), shape.of(_F32))
    sign = builder.shl(builder.and_(word, c(0x8000)), c(16))
    moved = builder.shl(builder.and_(word, c(0x7FFF)), c(13))
    # The exponent counts from -15 instead of -127; subnormals become normal on the way.
    number = builder.fmul(builder.bitcast(moved, shape.of(_F32)), c(2.0**112, _F32))
    number = builder.bitcast(number, shape.of(_I32))
    special = builder.icmp_unsigned(">=", moved, c(0x1F << 23))
    number = builder.select(special, builder.or_(moved, c(_INFINITY)), number)
    return builder.bitcast(builder.or_(number, sign), shape.of(_F32))


def _random_bits(builder: Any, shape: _Shape, noise: Any, column: Any) -> Any:
    """Return 32 random bits a lane: C. Wellons' lowbias32 of (noise, column)."""
    c = shape.constant
    counter = shape.spread(builder, builder.trunc(column, _I32))
    if shape.lanes is not None:
        counter = builder.add(counter, ir.Constant(shape.of(_I32), list(range(shape.lanes))))
    x = builder.mul(counter, c(0x9E3779B9))
    x = builder.xor(x, shape.spread(builder, noise))
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = builder.mul(builder.xor(x, builder.lshr(x, c(shift))), c(factor))
    return builder.xor(x, builder.lshr(x, c(15)))


def narrowed(
    builder: Any, number: Any, dither: tuple[Any, Any], lanes: int | None, *, is_bfloat: bool
) -> Any:
    """Return the 16 bits of each float32; ``dither`` = (noise, column)."""
    shape = _Shape(lanes)
    c = shape.constant
    noise, column = dither
    random = _random_bits(builder, shape, noise, column)
    is_nearest = shape.spread(builder, builder.icmp_unsigned("==", noise, _I32(0)))
    word = builder.bitcast(number, shape.of(_I32))
    size = builder.and_(word, c(0x7FFFFFFF))
    is_nan = builder.icmp_unsigned(">", size, c(_INFINITY))

    def rounded(bits: Any, dropped: int) -> Any:
        last = builder.and_(builder.lshr(bits, c(dropped)), c(1))
        half = builder.add(last, c((1 << (dropped - 1)) - 1))
        some = builder.and_(random, c((1 << dropped) - 1))
        return builder.lshr(
            builder.add(bits, builder.select(is_nearest, half, some)), c(dropped)
        )

    if is_bfloat:
        kept = builder.or_(builder.lshr(word, c(16)), c(0x40))
        short = rounded(word, 16)
        overflows = builder.and_(
            builder.icmp_unsigned("<", size, c(_INFINITY)),
            builder.icmp_unsigned("==", builder.and_(short, c(0x7FFF)), c(0x7F80)),
        )
        short = builder.select(overflows, builder.sub(short, c(1)), short)
        short = builder.select(is_nan, kept, short)
        return builder.trunc(short, shape.of(_I16))
    sign = builder.and_(builder.lshr(word, c(16)), c(0x8000))
    too_big = builder.icmp_unsigned(">", size, c(_TOP_16))
    size = builder.select(too_big, c(_TOP_16), size)
    normal = builder.sub(rounded(size, 13), c(112 << 10))
    # A subnormal counts steps of 2^-24, which are also those of floats from 0.5 to 1.
    tiny = builder.bitcast(size, shape.of(_F32))
    near = builder.bitcast(builder.fadd(tiny, c(0.5, _F32)), shape.of(_I32))
    near = builder.sub(near, c(0x3F000000))
    chance = builder.uitofp(builder.and_(random, c(0xFFFF)), shape.of(_F32))
    chance = builder.fmul(chance, c(2.0**-16, _F32))
    above = builder.fadd(builder.fmul(tiny, c(2.0**24, _F32)), chance)
    subnormal = builder.select(is_nearest, near, builder.fptosi(above, shape.of(_I32)))
    is_subnormal = builder.icmp_unsigned("<", size, c(_LEAST_NORMAL_16))
    short = builder.select(is_subnormal, subnormal, normal)
    short = builder.select(is_nan, c(0x7E00), short)
    return builder.trunc(builder.or_(short, sign), shape.of(_I16))
