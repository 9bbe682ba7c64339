"""Looking up a batch of ids, strip by strip.

Memory answers after the time that hundreds of instructions take, and answers many
requests at once. So each key asks for its line of the index ``LEAD`` keys before that
is looked into; requests and work alternate from key to key, so that there are always some
on their way. Rows are used in a loop of their own, which asks for them in the same way:
one that did both would have no registers left, and its requests would wait for each other.
A group of keys is looked up at a time, so that its slots stay near until its rows are used.

A key that its home line lacks is *missed*: a few in a hundred, for whom nothing waits. If
the line is full, it is looked for in the next one a strip later, when that is there, and so
on. So no memory is waited for. Keys that are in no line are created in the order they came,
with all that are still looked for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.hashing import mix
from paramfleet_shared.tables.kernels.index import (
    CROWDED,
    DONE,
    GROUPS,
    LAST_VALUE,
    LEAD,
    PAGES,
    STRIP,
    Index,
    create_slots,
    home_of,
    next_line,
    probe,
)
from paramfleet_shared.tables.kernels.lanes import match_line, prefetch

__all__ = ["find_slots"]

_MOST_SOUGHT = 4 * STRIP
"""Keys that wait for a line, at most; if there are more, they are looked for at once."""

_WAITS = -1

_NONE: Any = np.int64(0)
"""What counts begin with: a plain 0 has a type of its own, and kernels that are called with
it would be compiled for it, too."""


@inlined
def _aim(index: Any, keys: Any, start: int) -> None:
    """Note the home lines of the strip of keys from ``start`` on, and of ``LEAD`` more."""
    homes = index.homes
    groups, pages = index.counts[GROUPS], index.counts[PAGES]
    ahead = keys[start : start + STRIP + LEAD]
    for j in range(ahead.size):  # no prefetch in here: so it runs in vectors
        homes[j] = home_of(mix(ahead[j]), groups, pages)


@inlined
def _ask_first(index: Any, num: int) -> None:
    """Ask for the lines of a batch's first keys."""
    for j in range(min(num, LEAD)):
        prefetch(index.lines, index.homes[j] << 3)


@uncounted
def _look_beyond(
    index: Index, keys: NDArray[np.uint64], start: int, num_sought: int, num_missed: int
) -> int:
    """Look into the lines that came for those sought, and let those missed be sought, too.

    The latter are of the strip from ``start`` on. Return how many are in no line.
    """
    lines, words, homes = index.lines, index.words, index.homes
    missed, numbers, places, values, _found, _slots = index.missed
    groups, pages = index.counts[GROUPS], index.counts[PAGES]
    num_absent = 0
    for j in range(num_sought):
        key, line = keys[numbers[j]], places[j]
        value = match_line(lines, line, key)
        if value == 0 and words[line, LAST_VALUE] != 0:
            if num_sought > _MOST_SOUGHT:
                value, _ = probe(lines, words, key, line)
            elif next_line(line) != home_of(mix(key), groups, pages):  # else all are full
                value = _WAITS
        values[j] = value
        num_absent += value == 0
    for j in range(num_missed):
        home, to = homes[missed[j] - start], num_sought + j
        is_full = words[home, LAST_VALUE] != 0
        numbers[to], places[to], values[to] = missed[j], home, -np.int64(is_full)
        num_absent += not is_full
    return num_absent


@uncounted
def _sort_out(index: Index, num: int) -> tuple[int, int]:
    """Ask for the next lines of keys that wait for one; return how many do, and don't.

    ``num`` were looked for. Those that don't wait are listed with their slots.
    """
    _missed, numbers, places, values, found, slots = index.missed
    num_sought, num_found = 0, 0
    for j in range(num):
        if values[j] == _WAITS:
            line = next_line(places[j])
            prefetch(index.lines, line << 3)
            numbers[num_sought], places[num_sought] = numbers[j], line
            num_sought += 1
        else:
            found[num_found], slots[num_found] = numbers[j], values[j] - 1
            num_found += 1
    return num_sought, num_found


@uncounted
def _find_strip(
    index: Index, keys: NDArray[np.uint64], start: int, slots: NDArray[np.int64]
) -> int:
    """Look into the home lines of a strip; return how many keys were missed."""
    lines, homes, missed, num_missed = index.lines, index.homes, index.missed[0], 0
    strip, mine = keys[start : start + STRIP], slots[start : start + STRIP]
    for j in range(strip.size):
        prefetch(lines, homes[j + LEAD] << 3)
        slot = match_line(lines, homes[j], strip[j]) - 1
        mine[j] = slot
        # Without a branch, which would be mispredicted; unsigned: not from the end.
        missed[np.uint64(num_missed)] = start + j
        num_missed += slot < 0
    return num_missed


@uncounted
def find_slots(
    index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64], create: Any
) -> int:
    """Put the slot of each key into ``slots``, -1 where it has none.

    With ``create`` (a bool) new keys get the next slots, in the order they come; there
    must be room for as many rows. Stops at the first key whose page has no place.
    """
    _missed, numbers, _places, values, found, its_slots = index.missed
    start, num_sought = _NONE, _NONE
    _aim(index, keys, 0)
    _ask_first(index, keys.size)
    while start < keys.size or num_sought:
        num_missed = _find_strip(index, keys, start, slots)
        num_absent = _look_beyond(index, keys, start, num_sought, num_missed)
        num = num_sought + num_missed
        made = DONE
        if create and num_absent:
            made = create_slots(index, keys, numbers[:num], values)
        if made != DONE:
            return CROWDED
        num_sought, num_found = _sort_out(index, num)
        for j in range(num_found):
            slots[found[j]] = its_slots[j]
        start += STRIP
        _aim(index, keys, start)
    return DONE
