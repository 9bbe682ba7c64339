"""Eight floats at once: a vector value that kernels compute with like a float.

LLVM's own vectorizer does poorly on a table's rows (short, of a length it doesn't
know, perhaps overlapping). So a row is walked in explicit vectors of ``LANES``
floats, and the rest of it float by float. Rows of just a cache line's floats, where each
instruction counts, are one vector of ``LINE_LANES``. Arithmetic is plain IEEE, elementwise
and uncontracted: a vector gives the same bits as its floats would.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # llvmlite ships no types
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from paramfleet_shared.tables.kernels.basics.halves import narrowed, widened

__all__ = [
    "LANES",
    "LANES_TYPE",
    "LINE_LANES",
    "cut",
    "declared",
    "element",
    "folded",
    "instruction",
    "list_negative",
    "load_float",
    "load_lanes",
    "load_line",
    "match_line",
    "prefetch",
    "round_float",
    "round_lanes",
    "round_line",
    "spread",
    "square_root",
    "store_float",
    "store_lanes",
    "store_line",
]

LANES = 8
"""Floats in a vector: one AVX2 register, two NEON registers."""

LINE_LANES = 16
"""Floats in a cache line: one AVX-512 register, two of AVX2."""

_FLOAT = ir.FloatType()
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_INFER: Any = infer_global  # numba leaves them untyped
_LOWER: Any = lower_builtin
_LINE = ir.VectorType(_I64, 8)
_EIGHT_BYTES = ir.VectorType(_I8, 8)


class _Lanes(types.Type):
    """The numba type of ``count`` floats."""

    def __init__(self, count: int) -> None:
        super().__init__(name=f"lanes{count}")
        self.count = count


LANES_TYPE = _Lanes(LANES)
_LINE_TYPE = _Lanes(LINE_LANES)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    """A vector lives in a vector register."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        vector = ir.VectorType(_FLOAT, numba_type.count)
        super().__init__(manager, numba_type, vector)  # type: ignore[no-untyped-call]  # numba


class _Arithmetic(AbstractTemplate):
    """lanes op lanes, lanes op float32 and float32 op lanes give lanes."""

    def generic(self, args: Any, _keywords: Any) -> Any:
        """Return the signature if one side is a vector, and the other as long or a float."""
        for vector in (LANES_TYPE, _LINE_TYPE):
            if vector in args and all(a in (vector, types.float32) for a in args):
                return vector(*args)
        return None


def spread(builder: Any, value: Any, lanes: int = LANES) -> Any:
    """Return ``value`` in each of ``lanes`` lanes; a vector is that already."""
    if isinstance(value.type, ir.VectorType):
        return value
    nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, nothing, zeros)


def _define(operation: Any, instruction: str) -> None:
    _INFER(operation)(type(f"_{instruction}", (_Arithmetic,), {}))

    def lower(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = signature.return_type.count
        return getattr(builder, instruction)(*(spread(builder, a, lanes) for a in args))

    for vector in (LANES_TYPE, _LINE_TYPE):
        for left, right in (
            (vector, vector),
            (vector, types.float32),
            (types.float32, vector),
        ):
            _LOWER(operation, left, right)(lower)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make kernels compile a call of ``function`` to what it generates."""
    instruction: Callable[..., Any] = intrinsic(function)
    return instruction


def element(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Return a pointer to the flat element ``offset`` of a contiguous array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def declared(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Return an external function of the module that is being built."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _is_bfloat(array_type: Any) -> bool | None:
    """Return whether an array's 16-bit numbers are bfloat16, None where it has floats."""
    return {types.float32: None, types.uint16: True, types.int16: False}[array_type.dtype]


def _load(context: Any, builder: Any, sig: Any, args: Any, lanes: int | None) -> Any:
    """Generate the float32 of ``lanes`` numbers, None for one."""
    pointer = element(context, builder, sig.args[0], args[0], args[1])
    is_bfloat = _is_bfloat(sig.args[0])
    if lanes is not None:
        of = _FLOAT if is_bfloat is None else _I16
        pointer = builder.bitcast(pointer, ir.VectorType(of, lanes).as_pointer())
    bits = builder.load(pointer, align=4 if is_bfloat is None else 2)
    return bits if is_bfloat is None else widened(builder, bits, lanes, is_bfloat=is_bfloat)


def _store(context: Any, builder: Any, sig: Any, args: Any, lanes: int | None) -> Any:
    """Generate the store of ``lanes`` float32, None for one; args[3:] = (noise, column)."""
    pointer = element(context, builder, sig.args[0], args[0], args[1])
    is_bfloat, number = _is_bfloat(sig.args[0]), args[2]
    if is_bfloat is not None:
        dither = args[3:] or (_I32(0), _I64(0))
        number = narrowed(builder, number, dither, lanes, is_bfloat=is_bfloat)
    pointer = builder.bitcast(pointer, number.type.as_pointer())
    builder.store(number, pointer, align=4 if is_bfloat is None else 2)
    return context.get_dummy_value()


@instruction
def load_lanes(_typing: Any, array: Any, _offset: Any) -> Any:
    """Return ``array.flat[offset : offset + LANES]`` as float32."""
    generate = partial(_load, lanes=LANES)
    return LANES_TYPE(array, types.int64), generate


@instruction
def store_lanes(_typing: Any, array: Any, _offset: Any, _lanes: Any) -> Any:
    """Put ``lanes`` into ``array.flat[offset : offset + LANES]``, rounded to nearest."""
    generate = partial(_store, lanes=LANES)
    return types.void(array, types.int64, LANES_TYPE), generate


@instruction
def round_lanes(
    _typing: Any, array: Any, _offset: Any, _lanes: Any, _noise: Any, _column: Any
) -> Any:
    """As ``store_lanes``, rounded as ``noise`` says; floats stay as they are."""
    generate = partial(_store, lanes=LANES)
    return types.void(array, types.int64, LANES_TYPE, types.uint32, types.int64), generate


@instruction
def load_line(_typing: Any, array: Any, _offset: Any) -> Any:
    """Return ``array.flat[offset : offset + LINE_LANES]`` as float32."""
    generate = partial(_load, lanes=LINE_LANES)
    return _LINE_TYPE(array, types.int64), generate


@instruction
def store_line(_typing: Any, array: Any, _offset: Any, _lanes: Any) -> Any:
    """Put a line into ``array.flat[offset : offset + LINE_LANES]``, rounded to nearest."""
    generate = partial(_store, lanes=LINE_LANES)
    return types.void(array, types.int64, _LINE_TYPE), generate


@instruction
def round_line(
    _typing: Any, array: Any, _offset: Any, _lanes: Any, _noise: Any, _column: Any
) -> Any:
    """As ``store_line``, rounded as ``noise`` says; floats stay as they are."""
    generate = partial(_store, lanes=LINE_LANES)
    return types.void(array, types.int64, _LINE_TYPE, types.uint32, types.int64), generate


@instruction
def load_float(_typing: Any, array: Any, _offset: Any) -> Any:
    """Return ``array[offset]`` as float32: ``load_lanes`` for what is left of a row."""
    generate = partial(_load, lanes=None)
    return types.float32(array, types.int64), generate


@instruction
def store_float(_typing: Any, array: Any, _offset: Any, _value: Any) -> Any:
    """Put ``value`` into ``array[offset]``, rounded to nearest."""
    generate = partial(_store, lanes=None)
    return types.void(array, types.int64, types.float32), generate


@instruction
def round_float(
    _typing: Any, array: Any, _offset: Any, _value: Any, _noise: Any, _column: Any
) -> Any:
    """As ``store_float``, rounded as ``noise`` says."""
    generate = partial(_store, lanes=None)
    return types.void(array, types.int64, types.float32, types.uint32, types.int64), generate


@instruction
def square_root(_typing: Any, lanes: Any) -> Any:
    """Return the square root, lane by lane, or of one float."""
    count = lanes.count if isinstance(lanes, _Lanes) else None

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        kind = _FLOAT if count is None else ir.VectorType(_FLOAT, count)
        name = "llvm.sqrt.f32" if count is None else f"llvm.sqrt.v{count}f32"
        return builder.call(declared(builder, name, kind, [kind]), args)

    kind = types.float32 if count is None else lanes
    return kind(kind), generate


@instruction
def cut(_typing: Any, lanes: Any, _limit: Any) -> Any:
    """Return what lies within -limit..limit, and the nearer of both for what doesn't.

    Lane by lane, or of one float; NaN becomes ``limit``.
    """
    count = lanes.count if isinstance(lanes, _Lanes) else None

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        number, most = args
        least = builder.fneg(most)
        if count is not None:
            most, least = spread(builder, most, count), spread(builder, least, count)
        number = builder.select(builder.fcmp_ordered("<", number, most), number, most)
        return builder.select(builder.fcmp_ordered(">", number, least), number, least)

    kind = types.float32 if count is None else lanes
    return kind(kind, types.float32), generate


@instruction
def folded(_typing: Any, _lanes: Any) -> Any:
    """Return the sum of ``LANES`` lanes: of both halves, then of the halves of that sum."""

    def generate(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        lanes, half = args[0], LANES // 2
        while half:
            kind = ir.VectorType(_I32, half)
            low = builder.shuffle_vector(lanes, lanes, kind(list(range(half))))
            high = builder.shuffle_vector(lanes, lanes, kind(list(range(half, 2 * half))))
            lanes, half = builder.fadd(low, high), half // 2
        return builder.extract_element(lanes, _I32(0))

    return types.float32(LANES_TYPE), generate


@instruction
def prefetch(_typing: Any, array: Any, _offset: Any) -> Any:
    """Bring the cache line of ``array.flat[offset]`` near; out of bounds is harmless."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = _I8.as_pointer()
        hint = declared(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, _I32, _I32, _I32])
        pointer = builder.bitcast(element(context, builder, sig.args[0], *args), byte)
        builder.call(hint, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@instruction
def match_line(_typing: Any, lines: Any, _line: Any, _key: Any) -> Any:
    """Return the value beside ``key`` in an index's line, 0 if it isn't there.

    Of several places that hold the key the first counts. A line is 8 words of 64 bits
    (the first 5 are keys) or 16 of 32 bits (after the keys their 5 values, then a 0).
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = builder.shl(args[1], _I64(3))
        pointer = element(context, builder, sig.args[0], args[0], start)
        words = builder.load(builder.bitcast(pointer, _LINE.as_pointer()), align=32)
        nothing = ir.Constant(_LINE, ir.Undefined)
        first = builder.insert_element(nothing, args[2], _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, 8), [0] * 8)
        wanted = builder.shuffle_vector(first, nothing, zeros)
        found = builder.bitcast(builder.icmp_unsigned("==", words, wanted), _I8)
        # Where no key matches, the place after the last is read: the 0.
        found = builder.or_(builder.zext(found, _I64), _I64(0b100000))
        place = builder.cttz(found, ir.IntType(1)(1))
        values = builder.bitcast(builder.gep(pointer, [_I64(5)]), _I32.as_pointer())
        value = builder.load(builder.gep(values, [place]), align=4)
        return builder.zext(value, _I64)

    return types.int64(lines, types.int64, types.uint64), generate


def _places_of_bits(builder: Any) -> Any:
    """Return a table of each byte's set bits: eight places, those of the bits first."""
    name, kind = "places_of_bits", ir.ArrayType(_EIGHT_BYTES, 256)
    table = builder.module.globals.get(name)
    if table is None:
        sets = [[j for j in range(8) if byte >> j & 1] for byte in range(256)]
        places = [ir.Constant(_EIGHT_BYTES, (bits + [0] * 8)[:8]) for bits in sets]
        table = ir.GlobalVariable(builder.module, kind, name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(kind, places)
    return table


@instruction
def list_negative(_typing: Any, numbers: Any, _count: Any, values: Any, _start: Any) -> Any:
    """Append the place of each negative of ``values[start : start + LANES]`` to ``numbers``.

    ``numbers`` has ``count`` so far, and room for ``LANES`` more. Return its new count. No
    branch is taken: one that follows what memory answers would be mispredicted.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = element(context, builder, sig.args[2], args[2], args[3])
        found = builder.load(builder.bitcast(start, _LINE.as_pointer()), align=8)
        is_negative = builder.icmp_signed("<", found, ir.Constant(_LINE, [0] * 8))
        bits = builder.bitcast(is_negative, _I8)
        row = [_I64(0), builder.zext(bits, _I64)]
        places = builder.load(builder.gep(_places_of_bits(builder), row), align=8)
        listed = builder.add(builder.zext(places, _LINE), spread(builder, args[3]))
        end = element(context, builder, sig.args[0], args[0], args[1])
        builder.store(listed, builder.bitcast(end, _LINE.as_pointer()), align=8)
        count_bits = declared(builder, "llvm.ctpop.i8", _I8, [_I8])
        return builder.add(args[1], builder.zext(builder.call(count_bits, [bits]), _I64))

    whole = types.int64
    return whole(numbers, whole, values, whole), generate
