"""Numbers and ids in fewer bytes, and back.

The loops are plain and free of calls, so that LLVM turns them into vectors: they run
about as fast as memory. What is narrowed is rounded to the nearest, ties to even, and
what a format can't hold becomes its largest finite value; infinities and NaN stay what
they are.

Packed ids, shard by shard: nothing for a shard without ids, else its first id in 8
bytes and then the differences from id to id, modulo 2^64, in blocks of ``BLOCK``: one
byte for the width in bits, the differences in so many bits each, the lowest bits first,
and zero bits up to a whole byte. ``PADDING`` zero bytes end it all: a reader may load
9 bytes wherever a difference begins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel, uncounted

__all__ = [
    "BLOCK",
    "PADDING",
    "ROOM",
    "from_bfloat16",
    "from_float16",
    "pack",
    "to_bfloat16",
    "to_float16",
    "unpack",
]

BLOCK = 32
"""Differences of one width: the widest of so few exceeds the mean by 2 bits or so."""

PADDING = 8

ROOM = 8 + 1 + 8 * BLOCK + 8 + PADDING
"""Bytes that a block may take, with a shard's first id, and what is stored behind it."""

_WORD = 64
"""Bits that are stored at a time."""

_MOST_AT_ONCE = 56
"""Bits of a difference that are in the 8 bytes from its first byte on, wherever it begins."""

_U = np.uint32
_ABS, _INF = _U(0x7FFFFFFF), _U(0x7F800000)
_1, _13, _16 = _U(1), _U(13), _U(16)
_BF_HALF, _BF_ABS, _BF_INF, _BF_QUIET = _U(0x7FFF), _U(0x7FFF), _U(0x7F80), _U(0x40)
_H_SIGN, _H_QUIET, _H_INF, _H_MAX = _U(0x8000), _U(0x7E00), _U(0x7C00), _U(0x7BFF)
_H_LEAST = _U(0x38800000)  # 2^-14, the least normal float16
_H_OVER = _U(0x477FF000)  # 65520, what would round to 65536
_H_BIAS = _U(0x38000000)  # (127 - 15) << 23
_H_HALF = _U(0x0FFF)
_H_STEP, _H_STEPS = np.float32(2.0**-24), np.float32(2.0**24)
_TO_WHOLE_SMALL = np.float32(2.0**23)
_64 = np.uint64(64)
_BYTE = np.uint64(0xFF)


@kernel
def to_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Narrow floats, given as their bits."""
    for i in range(out.size):
        b = bits[i]
        m = b & _ABS
        r = (b + _BF_HALF + ((b >> _16) & _1)) >> _16
        if m < _INF and (r & _BF_ABS) == _BF_INF:
            r -= _1
        if m > _INF:
            r = (b >> _16) | _BF_QUIET
        out[i] = np.uint16(r)


@kernel
def from_bfloat16(rows: NDArray[np.uint16], out: NDArray[np.uint32]) -> None:
    """Widen to the bits of floats."""
    for i in range(out.size):
        out[i] = _U(rows[i]) << _16


@kernel
def to_float16(
    values: NDArray[np.float32], bits: NDArray[np.uint32], out: NDArray[np.uint16]
) -> None:
    """Narrow floats to the bits of float16; ``bits`` are those of ``values``."""
    for i in range(out.size):
        b = bits[i]
        m = b & _ABS
        r = (m - _H_BIAS + _H_HALF + ((m >> _13) & _1)) >> _13
        if m >= _H_OVER:
            r = _H_MAX
        if m == _INF:
            r = _H_INF
        if m > _INF:
            r = _H_QUIET
        if m < _H_LEAST:
            r = _U((abs(values[i]) * _H_STEPS + _TO_WHOLE_SMALL) - _TO_WHOLE_SMALL)
        out[i] = np.uint16(r | ((b >> _16) & _H_SIGN))


@kernel
def from_float16(
    rows: NDArray[np.uint16], out: NDArray[np.float32], bits: NDArray[np.uint32]
) -> None:
    """Widen the bits of float16; ``bits`` are those of ``out``, the same memory."""
    for i in range(out.size):
        h = _U(rows[i])
        m = h & _BF_ABS
        r = (m << _13) + _H_BIAS
        if m >= _H_INF:
            r += _H_BIAS
        if m < _U(0x0400):  # what float16 can only count: 2^-24 times so many
            r = np.float32(np.float32(m) * _H_STEP).view(np.uint32)
        bits[i] = r | ((h & _H_SIGN) << _16)


@inlined
def _width_of(ids: NDArray[np.uint64], start: int, stop: int) -> int:
    """Return the bits that the widest difference needs."""
    every = np.uint64(0)
    for i in range(start, stop):
        every |= ids[i] - ids[i - 1]
    width = 0
    while every:
        every >>= np.uint64(1)
        width += 1
    return width


@inlined
def _put(out: NDArray[np.uint8], place: int, value: np.uint64) -> None:
    """Store a number in 8 bytes, the lowest first."""
    first = np.uint64(place)  # unsigned: not from the end, so that LLVM makes it one store
    for k in range(8):
        out[first + np.uint64(k)] = np.uint8((value >> np.uint64(8 * k)) & _BYTE)


@inlined
def _pack_narrow(ids: Any, block: Any, end: Any, width: Any, out: Any, place: Any) -> Any:
    """Pack a block of at most ``_MOST_AT_ONCE`` bits each; return where the next begins.

    Each store has all bits that no byte is full of yet, and no branch depends on them.
    """
    word, filled = np.uint64(0), 0
    for i in range(block, end):
        word |= (ids[i] - ids[i - 1]) << np.uint64(filled)
        _put(out, place, word)
        filled += width
        place += filled >> 3
        word >>= np.uint64(filled & ~7)
        filled &= 7
    return place + (filled + 7) // 8


@inlined
def _pack_wide(ids: Any, block: Any, end: Any, width: Any, out: Any, place: Any) -> Any:
    """As ``_pack_narrow``, of any width."""
    word, filled = np.uint64(0), 0  # what isn't written yet, in so many bits
    for i in range(block, end):
        difference = ids[i] - ids[i - 1]
        word |= difference << np.uint64(filled)
        filled += width
        if filled >= _WORD:
            _put(out, place, word)
            place += 8
            filled -= _WORD
            word = np.uint64(0)
            if filled:
                word = difference >> np.uint64(width - filled)
    _put(out, place, word)
    return place + (filled + 7) // 8


@uncounted
def pack(ids: NDArray[np.uint64], offsets: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Pack ids into ``out``; return how many bytes, or 0 if they need not less than ids do.

    ``out`` has ``ROOM`` bytes more than the ids.
    """
    place, most = 0, out.size - ROOM
    for shard in range(offsets.size - 1):
        start, stop = offsets[shard], offsets[shard + 1]
        if place >= most:
            return 0
        if stop > start:
            _put(out, place, ids[start])
            place += 8
        for block in range(start + 1, stop, BLOCK):
            if place >= most:
                return 0
            end = min(block + BLOCK, stop)
            width = _width_of(ids, block, end)
            out[place] = width
            place += 1
            if width <= _MOST_AT_ONCE:
                place = _pack_narrow(ids, block, end, width, out, place)
            else:
                place = _pack_wide(ids, block, end, width, out, place)
    _put(out, place, np.uint64(0))
    place += PADDING
    return place if place < most else 0


@inlined
def _load(packed: NDArray[np.uint8], at: Any) -> np.uint64:
    """Return 8 bytes as a number."""
    first, value = np.uint64(at), np.uint64(0)  # unsigned, as in ``_put``
    for k in range(8):
        value |= np.uint64(packed[first + np.uint64(k)]) << np.uint64(8 * k)
    return value


@inlined
def _difference(packed: Any, place: Any, bit: Any, width: Any) -> Any:
    """Return the bits from ``bit`` on after ``place``, of which ``width`` count."""
    at, shift = place + (bit >> 3), np.uint64(bit & 7)
    value = _load(packed, at) >> shift
    if width > _MOST_AT_ONCE and shift:
        value |= np.uint64(packed[at + 8]) << (_64 - shift)
    return value


@inlined
def _unpack_block(packed: Any, place: Any, width: Any, ids: Any, last: Any) -> None:
    """Read the ids after ``last``, whose differences have ``width`` bits each."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF)
    if width < _WORD:
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    if width <= _MOST_AT_ONCE:  # which is known in a loop of its own
        for i in range(ids.size):
            last += _difference(packed, place, i * width, 0) & mask
            ids[i] = last
    else:
        for i in range(ids.size):
            last += _difference(packed, place, i * width, width) & mask
            ids[i] = last


@uncounted
def unpack(
    packed: NDArray[np.uint8], offsets: NDArray[np.int64], ids: NDArray[np.uint64]
) -> bool:
    """Read packed ids; return whether they are what ``pack`` could have written.

    ``offsets`` must rise from 0 to the number of ids. Every place is compared with the
    end before it is read.
    """
    end = packed.size - PADDING
    place = 0
    for shard in range(offsets.size - 1):
        start, stop = offsets[shard], offsets[shard + 1]
        if stop == start:
            continue
        if place + 8 > end:
            return False
        ids[start] = _load(packed, place)
        place += 8
        for block in range(start + 1, stop, BLOCK):
            count = min(BLOCK, stop - block)
            if place >= end or packed[place] > 64:
                return False
            width = np.int64(packed[place])
            place += 1
            num = (count * width + 7) // 8
            if place + num > end:
                return False
            _unpack_block(packed, place, width, ids[block : block + count], ids[block - 1])
            place += num
    return bool(place == end)
