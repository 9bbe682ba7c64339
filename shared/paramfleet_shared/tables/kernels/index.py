"""The index: where the row of an id lies.

Entries are kept in *lines* of 64 bytes, one cache line each: five ids of 64 bits, their
five values of 32 (each a slot + 1, or 0 for a free place), and a 0. A line fills in
order. 256 lines are a *page*, and an id that finds its home line full goes to the next
line of its page.

Growth is linear hashing of pages with partial expansions (Litwin, VLDB 1980; Larson,
VLDB 1980). A round starts with ``G`` groups of two pages. One group after the other gets
a third page, then one after the other a fourth, and ``G`` groups of four are the next
round's ``2 G`` of two. How far the round has come follows the load, so that no insert
ever pays for more than a few pages, nothing is rehashed as a whole, and the load stays
between ``2/3 FULLEST`` and ``BEGIN``.

Page ``t`` of group ``g`` is the index's page ``g + t G``: new pages are always the last.
The hash's low bits choose the group and, of two or four pages, the page; other bits,
which neither the shard nor the line depends on, choose one of three.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, kernel, uncounted
from paramfleet_shared.tables.kernels.hashing import mix
from paramfleet_shared.tables.kernels.lanes import match_line, prefetch

__all__ = [
    "AIMED",
    "CROWDED",
    "DONE",
    "IN_RING",
    "LEAD",
    "MOVING_ENTRIES",
    "RING",
    "STRIP",
    "Index",
    "aim",
    "create_slots",
    "find_slots",
    "match",
    "match_beyond",
    "pages_for",
    "strip_of",
]

DONE, CROWDED = 0, 1
"""What kernels that create return: all is done, or a page had no place left."""

STRIP = 32
"""Keys that go through a kernel's stages together."""

LEAD = 96
"""Keys between two stages: while as many are worked on, memory brings what the next needs."""

AIMED = LEAD + STRIP

RING = 256
"""Keys that are between the first stage and the last, at most; a power of 2."""

IN_RING = RING - 1

LINE_BITS = 8
LINE_ENTRIES = 5
PAGE_LINES = 1 << LINE_BITS
PAGE_ENTRIES = LINE_ENTRIES * PAGE_LINES
MOVING_ENTRIES = 3 * PAGE_ENTRIES

BEGIN, FULLEST = 0.62, 0.82
"""Load of the pages not yet expanded between which a half of a round runs.

At ``FULLEST`` a page overflows where seven standard deviations more ids than the mean
meet in it: never, unless they are crafted to.
"""

ROWS, GROUPS, PAGES = 0, 1, 2
"""What ``Index.counts`` holds: rows, groups of the round (a power of 2), pages."""

_FIRST_VALUE = 2 * LINE_ENTRIES  # in words of 32 bits
_LAST_VALUE = _FIRST_VALUE + LINE_ENTRIES - 1
_TO_LINE = np.uint64(64 - LINE_BITS)
_TO_HIGH, _HIGH = np.uint64(40), np.uint64(0xFF00)
_TO_LOW, _LOW = np.uint64(24), np.uint64(0xFF)


class Index(NamedTuple):
    """The arrays of one index, and what it counts."""

    lines: NDArray[np.uint64]
    """[max_lines, 8]"""
    words: NDArray[np.uint32]
    """[max_lines, 16]: the same memory."""
    ids: NDArray[np.uint64]
    """[max_rows]: the id of each slot."""
    counts: NDArray[np.int64]
    """[3]"""
    moving: NDArray[np.uint64]
    """[2, MOVING_ENTRIES]: ids and values of a group while it is expanded."""
    fill: NDArray[np.int64]
    """[4 * PAGE_LINES]: entries in the lines of that group."""
    rings: NDArray[np.int64]
    """[5, RING]: homes, slots, missed keys (twice) and holes of the strips of a batch."""


def pages_for(num_rows: int) -> int:
    """Return how many pages the index of ``num_rows`` rows may need."""
    # The emptiest is a round whose groups have just got their third page.
    return int((num_rows + STRIP) / (PAGE_ENTRIES * FULLEST * 2 / 3)) + 4


@inlined
def _home(bits: np.uint64, groups: int, pages: int) -> Any:
    """Return the line where an id of hash ``bits`` belongs."""
    second_half = pages >= 3 * groups
    expanded = pages - (3 * groups if second_half else 2 * groups)
    mask = 4 * groups - 1 if second_half else 2 * groups - 1
    group = np.int64(bits) & (groups - 1)
    third = np.int64(((bits >> _TO_HIGH) & _HIGH) | ((bits >> _TO_LOW) & _LOW)) * 3 >> 16
    in_thirds = (group < expanded) != second_half
    page = group + third * groups if in_thirds else np.int64(bits) & mask
    return (page << LINE_BITS) | np.int64(bits >> _TO_LINE)


@inlined
def _next_line(line: int) -> Any:
    return (line & ~np.int64(PAGE_LINES - 1)) | ((line + 1) & np.int64(PAGE_LINES - 1))


@inlined
def _empty_group(index: Index, group: int, num_pages: int) -> Any:
    """Move a group's entries to ``index.moving``; return their number."""
    lines, words, _ids, counts, moving, _fill, _rings = index
    num = 0
    for page in range(num_pages):
        first = (group + page * counts[GROUPS]) << LINE_BITS
        for line in range(first, first + PAGE_LINES):
            for j in range(LINE_ENTRIES):
                value = words[line, _FIRST_VALUE + j]
                moving[0, num] = lines[line, j]
                moving[1, num] = value
                num += value != 0
                words[line, _FIRST_VALUE + j] = 0
    return num


@kernel
def _expand(index: Index) -> None:
    """Give the round's next group one page more."""
    lines, words, _ids, counts, moving, fill, _rings = index
    groups = counts[GROUPS]
    had = counts[PAGES] // groups  # 2 or 3
    num = _empty_group(index, counts[PAGES] - had * groups, had)
    counts[PAGES] += 1
    fill[:] = 0
    for i in range(num):
        key = moving[0, i]
        line = _home(mix(key), groups, counts[PAGES])
        page = line >> LINE_BITS
        first = (page // groups) << LINE_BITS
        place = line & (PAGE_LINES - 1)
        while fill[first + place] == LINE_ENTRIES:
            place = (place + 1) & (PAGE_LINES - 1)
        entry = fill[first + place]
        fill[first + place] = entry + 1
        line = (page << LINE_BITS) | place
        lines[line, entry] = key
        words[line, _FIRST_VALUE + entry] = moving[1, i]
    if counts[PAGES] == 4 * groups:
        counts[GROUPS] = 2 * groups


@kernel
def grow(index: Index, more: int) -> None:
    """Add pages until the round stands where the load with ``more`` rows wants it."""
    counts = index.counts
    while True:
        groups, pages = counts[GROUPS], counts[PAGES]
        begun_with = 3 * groups if pages >= 3 * groups else 2 * groups
        load = (counts[ROWS] + more) / (begun_with * PAGE_ENTRIES)
        progress = (load - BEGIN) / (FULLEST - BEGIN)
        if pages >= begun_with + np.int64(max(0.0, min(1.0, progress)) * groups):
            return
        _expand(index)


@inlined
def _probe(lines: Any, words: Any, key: np.uint64, line: int) -> Any:
    """Walk the page from the home line to the key, or to where it should be.

    Return the value, 0 if absent, and the line, which is full only if all are.
    """
    value = match_line(lines, line, key)
    for _ in range(PAGE_LINES):
        if value != 0 or words[line, _LAST_VALUE] == 0:
            break
        line = _next_line(line)
        value = match_line(lines, line, key)
    return value, line


@inlined
def strip_of(ring: Any, start: int) -> Any:
    """Return the part of a ring where the strip of keys from ``start`` on has its places."""
    at = start & IN_RING
    return ring[at : at + STRIP]


@inlined
def aim(lines: Any, counts: Any, keys: Any, bounds: Any, homes: Any) -> None:
    """Note the home lines of the keys in ``bounds`` = (start, stop), and ask for them.

    ``start`` is the first key of a strip.
    """
    start, stop = bounds
    groups, pages = counts[GROUPS], counts[PAGES]
    for first in range(start, stop, STRIP):
        # Strips as arrays of their own: an index that wraps around keeps the compiler
        # from vectors.
        strip, mine = keys[first : min(first + STRIP, stop)], strip_of(homes, first)
        for i in range(strip.size):  # no prefetch in here: so it runs in vectors
            mine[i] = _home(mix(strip[i]), groups, pages)
        for i in range(strip.size):
            prefetch(lines, mine[i] << 3)


@inlined
def match(lines: Any, keys: Any, bounds: Any, ring: Any) -> Any:
    """Look at the home lines of the strip of keys in ``bounds`` = (start, stop).

    ``ring`` = (homes, slots, missed). Return how many keys aren't there: their places are
    in ``missed``, and the lines where they may be instead are on their way.
    """
    start, stop = bounds
    homes, slots, missed = ring
    num_missed = 0
    strip, mine, found = keys[start:stop], strip_of(homes, start), strip_of(slots, start)
    for i in range(strip.size):
        slot = match_line(lines, mine[i], strip[i]) - 1
        found[i] = slot
        missed[num_missed] = start + i  # without a branch, which would be mispredicted
        num_missed += slot < 0
    for j in range(num_missed):
        prefetch(lines, _next_line(homes[missed[j] & IN_RING]) << 3)
    return num_missed


@inlined
def match_beyond(lines: Any, words: Any, keys: Any, num_missed: int, ring: Any) -> Any:
    """Look for the missed keys beyond their home lines.

    ``ring`` = (homes, slots, missed). Return how many have no slot; they come first in
    ``missed`` then.
    """
    homes, slots, missed = ring
    num_absent = 0
    for j in range(num_missed):
        i = missed[j]
        home = homes[i & IN_RING]
        value = match_line(lines, _next_line(home), keys[i])  # it is there nearly always
        if value == 0:
            value, _ = _probe(lines, words, keys[i], home)
        slots[i & IN_RING] = value - 1
        missed[j], missed[num_absent] = missed[num_absent], i
        num_absent += value == 0
    return num_absent


@kernel
def create_slots(
    index: Index,
    keys: NDArray[np.uint64],
    absent: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> int:
    """Give slots to the keys at ``absent``, in this order; return ``DONE`` or ``CROWDED``.

    A key that stands there twice gets one slot. It is put into ``slots``, a ring.
    """
    lines, words, ids, counts, _moving, _fill, _rings = index
    grow(index, absent.size)
    for i in absent:
        line = _home(mix(keys[i]), counts[GROUPS], counts[PAGES])
        value, line = _probe(lines, words, keys[i], line)
        if value == 0:
            if words[line, _LAST_VALUE] != 0:
                return CROWDED
            slot = counts[ROWS]
            counts[ROWS] = slot + 1
            ids[slot] = keys[i]
            place = 0
            while words[line, _FIRST_VALUE + place] != 0:
                place += 1
            value = slot + 1
            lines[line, place] = keys[i]
            words[line, _FIRST_VALUE + place] = value
        slots[i & IN_RING] = value - 1
    return DONE


@uncounted
def find_slots(
    index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64], create: Any
) -> int:
    """Put the slot of each key into ``slots``, -1 where it has none.

    With ``create`` (a bool) new keys get the next slots, in the order they come; there
    must be room for as many rows. Stops at the first key whose page has no place.
    """
    lines, words, _ids, counts, _moving, _fill, rings = index
    homes, found, missed, before = rings[0], rings[1], rings[2], rings[3]
    num, num_before = keys.size, 0
    aim(lines, counts, keys, (0, min(num, LEAD)), homes)
    for start in range(0, num + LEAD, STRIP):
        here, stop, ahead = min(start, num), min(start + STRIP, num), min(start + AIMED, num)
        num_missed = match(lines, keys, (here, stop), (homes, found, missed))
        aim(lines, counts, keys, (min(start + LEAD, num), ahead), homes)
        num_absent = match_beyond(lines, words, keys, num_before, (homes, found, before))
        if create and num_absent:
            pages = counts[PAGES]
            if create_slots(index, keys, before[:num_absent], found) != DONE:
                return CROWDED
            if counts[PAGES] != pages:
                aim(lines, counts, keys, (here, ahead), homes)
        first, end = max(start - LEAD, 0), max(min(start + STRIP - LEAD, num), 0)
        ready = strip_of(found, first)
        for i in range(end - first):
            slots[first + i] = ready[i]
        missed, before, num_before = before, missed, num_missed
    return DONE
