"""Eight bytes as eight floats, and what narrowing to bytes asks of a vector.

All of it belongs to ``lanes``: a vector gives the same bits as its floats would.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # llvmlite ships no types
from numba import types

from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    LANES_TYPE,
    declared,
    element,
    instruction,
    spread,
)

__all__ = ["greatest", "largest", "load_bytes", "spread_float", "store_bytes"]

_I32 = ir.IntType(32)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_WORDS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_TO_WHOLE = 3 * 2.0**22
"""Adding and taking it away rounds to a whole number, ties to even."""
_MOST = 127.0


def _all(number: float, kind: Any = _FLOATS) -> Any:
    """Return a constant with ``number`` in every lane."""
    return ir.Constant(kind, [number] * LANES)


def _bytes_at(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    pointer = element(context, builder, array_type, array, offset)
    return builder.bitcast(pointer, _BYTES.as_pointer())


@instruction
def load_bytes(_typing: Any, array: Any, _offset: Any) -> Any:
    """Return ``array.flat[offset : offset + LANES]``, int8, as floats."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _bytes_at(context, builder, sig.args[0], *args)
        return builder.sitofp(builder.load(pointer, align=1), _FLOATS)

    return LANES_TYPE(array, types.int64), generate


@instruction
def store_bytes(_typing: Any, array: Any, _offset: Any, _lanes: Any) -> Any:
    """Round to whole numbers, ties to even, at most 127 in magnitude; return them.

    They are put into ``array.flat[offset : offset + LANES]``, int8.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = args[2]
        for rule, most in ((">", _MOST), ("<", -_MOST)):
            is_beyond = builder.fcmp_ordered(rule, whole, _all(most))
            whole = builder.select(is_beyond, _all(most), whole)
        whole = builder.fsub(builder.fadd(whole, _all(_TO_WHOLE)), _all(_TO_WHOLE))
        words = builder.fptosi(whole, _WORDS)
        pointer = _bytes_at(context, builder, sig.args[0], args[0], args[1])
        builder.store(builder.trunc(words, _BYTES), pointer, align=1)
        return whole

    return LANES_TYPE(array, types.int64, LANES_TYPE), generate


@instruction
def spread_float(_typing: Any, _value: Any) -> Any:
    """Return a float in every lane."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return spread(builder, args[0])

    return LANES_TYPE(types.float32), generate


@instruction
def greatest(_typing: Any, _left: Any, _right: Any) -> Any:
    """Return the larger magnitude, lane by lane; an infinity beats numbers, NaN beats it."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        ours, theirs = (
            builder.and_(builder.bitcast(arg, _WORDS), _all(0x7FFFFFFF, _WORDS)) for arg in args
        )
        bits = builder.select(builder.icmp_unsigned(">", ours, theirs), ours, theirs)
        return builder.bitcast(bits, _FLOATS)

    return LANES_TYPE(LANES_TYPE, LANES_TYPE), generate


@instruction
def largest(_typing: Any, _lanes: Any) -> Any:
    """Return the bits of the largest of eight magnitudes, as ``greatest`` orders them."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        reduce = declared(builder, f"llvm.vector.reduce.umax.v{LANES}i32", _I32, [_WORDS])
        return builder.call(reduce, [builder.bitcast(args[0], _WORDS)])

    return types.uint32(LANES_TYPE), generate
