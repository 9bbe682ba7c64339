"""The kernels that read: MultiSlot text to rows.

They release the GIL, know slots only by number, and never fail: what is wrong with a line
is a code, and the caller makes a sentence of it.

A row is a line of text. Its values lie one behind the other, the integers of all slots in
``ids`` and the floats of all slots in ``floats``; ``counts`` says how many of them belong
to each slot.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted

__all__ = [
    "BAD_COUNT",
    "LEFTOVER",
    "NOT_AN_INTEGER",
    "NOT_A_NUMBER",
    "OUT_OF_RANGE",
    "SLOT_MISSING",
    "TOO_FEW_VALUES",
    "WRONG_WIDTH",
    "at_line",
    "parse",
]

SLOT_MISSING: Final = 1
BAD_COUNT: Final = 2
TOO_FEW_VALUES: Final = 3
NOT_AN_INTEGER: Final = 4
NOT_A_NUMBER: Final = 5
OUT_OF_RANGE: Final = 6
WRONG_WIDTH: Final = 7
LEFTOVER: Final = 8
"""Why a line is bad; 0 is a good one."""

_UNSURE: Final = -1
"""A float whose rounding only an exact reader can decide."""

_NEWLINE: Final = 10
_MINUS: Final = 45
_PLUS: Final = 43
_POINT: Final = 46
_ZERO: Final = 48

_MAX_COUNT_DIGITS: Final = 9
_MAX_WORD: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_EXACT: Final = np.uint64(1 << 53)
_MAX_EXACT_TENS: Final = 22
_MAX_DIGITS: Final = 19
"""Decimal digits that surely fit 64 bits; further ones change less than ``_SLACK``."""

_MAX_TENS: Final = 290
_MAX_EXPONENT: Final = 100_000
_MAX_FLOAT: Final = 3.4028235677973366e38
"""From here on a double is no float32: half a unit above the largest."""

_SLACK: Final = 2.0**-50
"""More than the relative error of a double made of three rounded steps."""

_TENS = np.array([10.0**n for n in range(_MAX_TENS + 1)])


@inlined
def _is_blank(byte: Any) -> Any:
    return byte in (32, 9, 13)


@inlined
def _ends_word(byte: Any) -> Any:
    return byte <= 32 and byte in (32, 9, 13, 10)


@uncounted
def _read_count(text: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return position, value and code of a slot's number of values."""
    begin, count = at, np.int64(0)
    while np.uint8(text[at] - _ZERO) <= 9 and at - begin <= _MAX_COUNT_DIGITS:
        count = count * 10 + np.int64(text[at] - _ZERO)
        at += 1
    if at == begin and text[at] == _NEWLINE:
        return begin, count, SLOT_MISSING
    if at == begin or at - begin > _MAX_COUNT_DIGITS or not _ends_word(text[at]):
        return begin, count, BAD_COUNT
    return at, count, 0


@uncounted
def _read_integer(text: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return position, value and code of an integer from -2**63 to 2**64 - 1."""
    begin = at
    negative = text[at] == _MINUS
    at += negative
    first, value, over = at, np.uint64(0), False
    while np.uint8(text[at] - _ZERO) <= 9:
        digit = np.uint64(text[at] - _ZERO)
        if at - first >= _MAX_DIGITS and value > (_MAX_WORD - digit) // np.uint64(10):
            over = True
        value = value * np.uint64(10) + digit
        at += 1
    if at == first or not _ends_word(text[at]):
        missing = text[begin] == _NEWLINE
        return begin, np.int64(0), TOO_FEW_VALUES if missing else NOT_AN_INTEGER
    if over or (negative and value > np.uint64(1 << 63)):
        return begin, np.int64(0), OUT_OF_RANGE
    signed = np.int64(value)
    return at, -signed if negative else signed, 0


@uncounted
def _read_exponent(text: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return position, value and whether there is one, of what follows an ``e``."""
    negative = text[at] == _MINUS
    at += negative or text[at] == _PLUS
    first, value = at, np.int64(0)
    while np.uint8(text[at] - _ZERO) <= 9:
        if value < _MAX_EXPONENT:
            value = value * 10 + np.int64(text[at] - _ZERO)
        at += 1
    return at, -value if negative else value, at > first


@uncounted
def _read_float(text: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return position, value and code of a decimal number.

    The value is the float32 nearest to the double that Python reads. A double that is
    exact after one rounding is that double. Another may be off by a few units, which
    changes nothing unless a float32's rounding lies in between: then the code is unsure.
    """
    begin = at
    negative = text[at] == _MINUS
    at += negative
    first, point, digits, tens = at, np.int64(-1), np.int64(0), np.int64(0)
    value = np.uint64(0)
    while True:
        byte = text[at]
        if np.uint8(byte - _ZERO) <= 9:
            if digits < _MAX_DIGITS:
                value = value * np.uint64(10) + np.uint64(byte - _ZERO)
                digits += value != 0
            else:
                tens += 1
        elif byte == _POINT and point < 0:
            point = at
        else:
            break
        at += 1
    is_number = at - first > (point >= 0)
    if point >= 0:
        tens += point + 1 - at
    if is_number and text[at] in (101, 69):
        at, exponent, is_number = _read_exponent(text, at + 1)
        tens += exponent
    if not is_number or not _ends_word(text[at]):
        missing = text[begin] == _NEWLINE
        return begin, np.float32(0), TOO_FEW_VALUES if missing else NOT_A_NUMBER
    number, code = _to_float(value, min(max(tens, -_MAX_TENS), _MAX_TENS))
    if code > 0:
        at = begin
    return at, -number if negative else number, code


@uncounted
def _to_float(value: Any, tens: Any) -> tuple[Any, Any]:
    """Return ``value * 10**tens`` and a code."""
    scale = _TENS[abs(tens)]
    double = np.float64(value) * scale if tens >= 0 else np.float64(value) / scale
    if double * (1 + _SLACK) >= _MAX_FLOAT:
        return np.float32(0), OUT_OF_RANGE
    number = np.float32(double)
    if value <= _MAX_EXACT and abs(tens) <= _MAX_EXACT_TENS:
        return number, 0
    is_sure = np.float32(double * (1 - _SLACK)) == np.float32(double * (1 + _SLACK))
    return number, 0 if is_sure else _UNSURE


@uncounted
def _read_values(
    text: Any, at: Any, count: Any, slots: Any, out: Any, used: Any
) -> tuple[Any, Any]:
    """Read so many values of the slot ``used[3]``; returns position and code."""
    _, ids, floats, unsure = out
    is_float, code = slots[used[3], 0], 0
    for _ in range(count):
        while _is_blank(text[at]):
            at += 1
        word = at
        if is_float:
            at, floats[used[1]], code = _read_float(text, at)
            if code == _UNSURE:
                unsure[used[2], 0] = used[1]
                unsure[used[2], 1] = word
                unsure[used[2], 2] = at
                used[2] += 1
                code = 0
            used[1] += 1
        else:
            at, ids[used[0]], code = _read_integer(text, at)
            used[0] += 1
        if code:
            return at, code
    return at, 0


@uncounted
def _read_line(
    text: Any, at: Any, end: Any, slots: Any, out: Any, used: Any
) -> tuple[Any, Any]:
    """Read a line behind what is ``used``; returns position and code.

    The position is behind the last value, or at what is wrong; ``used[3]`` is the slot.
    """
    for slot in range(len(slots)):
        used[3] = slot
        while _is_blank(text[at]):
            at += 1
        word = at
        at, count, code = _read_count(text, at)
        if code:
            return at, code
        if slots[slot, 1] >= 0 and count != slots[slot, 1]:
            return word, WRONG_WIDTH
        if count > end - at:
            return word, TOO_FEW_VALUES
        out[0][slot] = count
        at, code = _read_values(text, at, count, slots, out, used)
        if code:
            return at, code
    while _is_blank(text[at]):
        at += 1
    return at, 0 if text[at] == _NEWLINE else LEFTOVER


@uncounted
def parse(
    text: NDArray[np.uint8],
    span: NDArray[np.int64],
    slots: NDArray[np.int64],
    out: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]],
    marks: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    used: NDArray[np.int64],
) -> int:
    """Read lines until a bad one or the end of the text; blank lines are passed over.

    Args:
        text: uint8 [T]; the byte before the end is a newline.
        span: int64 [4]: where to begin, which becomes where the next line begins; the
            end; the lines before, which becomes those read too; rows, which grows.
        slots: int64 [S, 2]: whether a slot holds floats; how many values it must have,
            -1 for any number.
        out: Each row's counts, int32 [R, S]; integers, int64 [V]; floats, float32 [V];
            and the unsure floats, int64 [V, 3]: place among the floats, begin and end in
            the text. V is half of the text's bytes, and one.
        marks: Where each row's integers and its floats begin, int64 [R + 1] each; each
            row's line, int64 [R].
        used: int64 [5]: integers, floats and unsure floats until now; they grow. At a bad
            line its slot, and where in the text it is wrong.

    Returns:
        0 at the end of the text; else what is wrong with the line that ``span`` has
        passed over.
    """
    counts, ids, floats, unsure = out
    id_starts, float_starts, lines = marks
    at, end, line, row = span[0], span[1], span[2], span[3]
    code = 0
    while at < end and code == 0:
        line += 1
        while _is_blank(text[at]):
            at += 1
        if text[at] == _NEWLINE:
            at += 1
            continue
        num_ids, num_floats, num_unsure = used[0], used[1], used[2]
        at, code = _read_line(text, at, end, slots, (counts[row], ids, floats, unsure), used)
        if code:
            used[0], used[1], used[2] = num_ids, num_floats, num_unsure
            used[4] = at
            while text[at] != _NEWLINE:
                at += 1
        else:
            lines[row] = line
            row += 1
            id_starts[row] = used[0]
            float_starts[row] = used[1]
        at += 1
    span[0], span[2], span[3] = at, line, row
    return code


@uncounted
def at_line(text: NDArray[np.uint8], number: int) -> int:
    """Return where the line behind ``number`` whole lines begins; -1 if there are fewer."""
    for at in range(text.size):
        if text[at] == _NEWLINE:
            number -= 1
            if number == 0:
                return at + 1
    return -1
