"""Eight floats at once: a vector value that kernels compute with like a float.

LLVM's own vectorizer does poorly on a table's rows (short, of a length it doesn't
know, perhaps overlapping). So a row is walked in explicit vectors of ``LANES``
floats, and the rest of it float by float. Arithmetic is plain IEEE, elementwise and
uncontracted: a vector gives the same bits as its floats would.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # llvmlite ships no types
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from paramfleet_shared.tables.kernels.compiled import inlined

__all__ = [
    "LANES",
    "load_float",
    "load_lanes",
    "match_line",
    "prefetch",
    "square_root",
    "store_float",
    "store_lanes",
]

LANES = 8
"""Floats in a vector: one AVX2 register, two NEON registers."""

_FLOAT, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INFER: Any = infer_global  # numba leaves them untyped
_LOWER: Any = lower_builtin
_LINE = ir.VectorType(_I64, 8)


class _Lanes(types.Type):
    """The numba type of ``LANES`` floats."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


_LANES_TYPE = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    """A vector lives in a vector register."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _VECTOR)  # type: ignore[no-untyped-call]  # numba


class _Arithmetic(AbstractTemplate):
    """lanes op lanes, lanes op float32 and float32 op lanes give lanes."""

    def generic(self, args: Any, _keywords: Any) -> Any:
        """Return the signature if one side is a vector."""
        allowed = (_LANES_TYPE, types.float32)
        if _LANES_TYPE in args and all(a in allowed for a in args):
            return _LANES_TYPE(*args)
        return None


def _spread(builder: Any, value: Any) -> Any:
    """Return ``value`` in every lane."""
    if value.type == _VECTOR:
        return value
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), zeros)


def _define(operation: Any, instruction: str) -> None:
    _INFER(operation)(type(f"_{instruction}", (_Arithmetic,), {}))

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*(_spread(builder, a) for a in args))

    for left, right in (
        (_LANES_TYPE, _LANES_TYPE),
        (_LANES_TYPE, types.float32),
        (types.float32, _LANES_TYPE),
    ):
        _LOWER(operation, left, right)(lower)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


def _instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make kernels compile a call of ``function`` to what it generates."""
    instruction: Callable[..., Any] = intrinsic(function)
    return instruction


def _element(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Return a pointer to the flat element ``offset`` of a contiguous array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _declared(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


@_instruction
def load_lanes(_typing: Any, array: Any, _offset: Any) -> Any:
    """Return ``array.flat[offset : offset + LANES]``."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _element(context, builder, sig.args[0], *args)
        return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)

    return _LANES_TYPE(array, types.int64), generate


@_instruction
def store_lanes(_typing: Any, array: Any, _offset: Any, _lanes: Any) -> Any:
    """Put ``lanes`` into ``array.flat[offset : offset + LANES]``."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _element(context, builder, sig.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES_TYPE), generate


@_instruction
def square_root(_typing: Any, lanes: Any) -> Any:
    """Return the square root, lane by lane, or of one float."""
    vector = lanes == _LANES_TYPE

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        kind = _VECTOR if vector else _FLOAT
        name = f"llvm.sqrt.v{LANES}f32" if vector else "llvm.sqrt.f32"
        return builder.call(_declared(builder, name, kind, [kind]), args)

    kind = _LANES_TYPE if vector else types.float32
    return kind(kind), generate


@inlined
def load_float(array: Any, offset: int) -> Any:
    """Return ``array[offset]``: ``load_lanes`` for what is left of a row."""
    return array[offset]


@inlined
def store_float(array: Any, offset: int, value: Any) -> None:
    """Put ``value`` into ``array[offset]``."""
    array[offset] = value


@_instruction
def prefetch(_typing: Any, array: Any, _offset: Any) -> Any:
    """Bring the cache line of ``array.flat[offset]`` near; out of bounds is harmless."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = _I8.as_pointer()
        hint = _declared(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, _I32, _I32, _I32])
        pointer = builder.bitcast(_element(context, builder, sig.args[0], *args), byte)
        builder.call(hint, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@_instruction
def match_line(_typing: Any, lines: Any, _line: Any, _key: Any) -> Any:
    """Return the value beside ``key`` in an index's line, 0 if it isn't there.

    Of several places that hold the key the first counts. A line is 8 words of 64 bits
    (the first 5 are keys) or 16 of 32 bits (after the keys their 5 values, then a 0).
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = builder.shl(args[1], _I64(3))
        pointer = _element(context, builder, sig.args[0], args[0], start)
        words = builder.load(builder.bitcast(pointer, _LINE.as_pointer()), align=32)
        nothing = ir.Constant(_LINE, ir.Undefined)
        first = builder.insert_element(nothing, args[2], _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, 8), [0] * 8)
        wanted = builder.shuffle_vector(first, nothing, zeros)
        found = builder.bitcast(builder.icmp_unsigned("==", words, wanted), _I8)
        # Where no key matches, the place after the last is read: the 0.
        found = builder.or_(builder.and_(found, _I8(0b11111)), _I8(0b100000))
        place = builder.cttz(builder.zext(found, _I64), ir.IntType(1)(1))
        values = builder.bitcast(builder.gep(pointer, [_I64(5)]), _I32.as_pointer())
        value = builder.load(builder.gep(values, [place]), align=4)
        return builder.zext(value, _I64)

    return types.int64(lines, types.int64, types.uint64), generate
