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
which neither the shard nor the line depends on, choose one of three. The hash is of the id
and a random number of each index, so that nobody can craft ids that share a page. No outcome
depends on that number: slots are numbered in the order in which ids come.

Slots of removed ids are kept on a stack, and the next new ids take them from there. An entry
that goes leaves a hole. In a line that was full, the hole would end the search for ids
that passed this line on their way to the next one; so one of those moves into it, which may
leave the next hole (Knuth, TAOCP 3, 6.4, algorithm R). Which ids passed a line is seen by their
home alone: the last entry of a run of full lines, say, may have its home behind the hole.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix
from paramfleet_shared.tables.kernels.basics.lanes import match_line

__all__ = [
    "CROWDED",
    "DONE",
    "FREE",
    "GROUP",
    "GROUPS",
    "LAST_VALUE",
    "LEAD",
    "MOVING_ENTRIES",
    "PAGES",
    "PAGE_LINES",
    "ROWS",
    "SALT",
    "TURNS",
    "USED",
    "Index",
    "create_slots",
    "delete_entry",
    "hash_of",
    "home_of",
    "next_line",
    "pages_for",
    "probe",
]

DONE, CROWDED = 0, 1
"""What kernels that create return: all is done, or a page had no place left."""

LEAD = 96
"""Keys between the request for a line, and its use."""

GROUP = 1 << 13
"""Keys of a batch that are looked up together, before their rows are used (see ``seek``)."""

LINE_BITS = 8
LINE_ENTRIES = 5
PAGE_LINES = 1 << LINE_BITS
PAGE_ENTRIES = LINE_ENTRIES * PAGE_LINES
MOVING_ENTRIES = 3 * PAGE_ENTRIES

BEGIN, FULLEST = 0.53, 0.7
"""Load of the pages not yet expanded between which a half of a round runs.

At ``FULLEST`` a page overflows where twelve standard deviations more ids than the mean
share it: never, unless they are crafted to. A round ends with a load of 3/4 ``FULLEST``;
with a lower ``BEGIN`` the next would start with a jump, and an insert would pay for it.
"""

ROWS, GROUPS, PAGES, USED, FREE, TURNS, SALT = 0, 1, 2, 3, 4, 5, 6
"""What ``Index.counts`` holds: rows, groups of the round (a power of 2), pages; slots that were
ever used, those that are free again; how often a row was removed or took a free slot; and the
random number of the hash."""

_FIRST_VALUE = 2 * LINE_ENTRIES  # in words of 32 bits
LAST_VALUE = _FIRST_VALUE + LINE_ENTRIES - 1
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
    """[max_rows]: the id of each slot, or the last one's of a slot without a row."""
    free: NDArray[np.uint32]
    """[max_rows]: a stack of free slots; what was taken from it last is still there, beyond its
    end."""
    counts: NDArray[np.int64]
    """[7]"""
    moving: NDArray[np.uint64]
    """[3, MOVING_ENTRIES]: ids and values of a group while it is expanded, and how many entries
    each of its lines has by then."""
    homes: NDArray[np.int64]
    """[GROUP + LEAD]: the lines where a group's keys are looked for; what is behind them is
    only asked for."""
    slots: NDArray[np.int64]
    """[GROUP + AHEAD]: the slots of a group's keys; what is behind them is only asked for."""
    missed: NDArray[np.int64]
    """[GROUP + LANES]: the numbers of a group's missed keys (see ``seek``)."""


def pages_for(num_rows: int) -> int:
    """Return how many pages the index of ``num_rows`` rows may need."""
    # The emptiest is a round whose groups have just got their third page.
    return int((num_rows + GROUP) / (PAGE_ENTRIES * FULLEST * 2 / 3)) + 4


@inlined
def hash_of(key: np.uint64, salt: int) -> Any:
    """Return the hash of an id in an index of this random number."""
    return mix(key ^ np.uint64(salt))


@inlined
def home_of(bits: np.uint64, groups: int, pages: int) -> Any:
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
def next_line(line: int) -> Any:
    """Return the line of the same page where an id goes that finds this one full."""
    return (line & ~np.int64(PAGE_LINES - 1)) | ((line + 1) & np.int64(PAGE_LINES - 1))


@inlined
def _empty_group(index: Index, group: int, num_pages: int) -> Any:
    """Move a group's entries to ``index.moving``; return their number."""
    lines, words, _ids, _free, counts, moving, _homes, _slots, _missed = index
    num: Any = np.int64(0)  # a plain 0 has a type of its own: see ``seek``
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
def _place_moving(index: Index, num: int) -> int:
    """Put ``num`` entries of ``index.moving`` to their empty pages; return how many fit."""
    lines, words, _ids, _free, counts, moving, _homes, _slots, _missed = index
    groups = counts[GROUPS]
    fill = moving[2, : 4 * PAGE_LINES].view(np.int64)
    fill[:] = 0
    for i in range(num):
        key = moving[0, i]
        line = home_of(hash_of(key, counts[SALT]), groups, counts[PAGES])
        page = line >> LINE_BITS
        first = (page // groups) << LINE_BITS
        place = line & (PAGE_LINES - 1)
        tried = 0
        while fill[first + place] == LINE_ENTRIES:
            place = (place + 1) & (PAGE_LINES - 1)
            tried += 1
            if tried == PAGE_LINES:
                return int(i)
        entry = fill[first + place]
        fill[first + place] = entry + 1
        line = (page << LINE_BITS) | place
        lines[line, entry] = key
        words[line, _FIRST_VALUE + entry] = moving[1, i]
    return num


@kernel
def _expand(index: Index) -> bool:
    """Give the round's next group one page more; where one would overflow, change nothing."""
    words, counts = index.words, index.counts
    groups = counts[GROUPS]
    had = counts[PAGES] // groups  # 2 or 3
    group = counts[PAGES] - had * groups
    num = _empty_group(index, group, had)
    counts[PAGES] += 1
    if _place_moving(index, num) < num:
        for page in range(had + 1):
            first = (group + page * groups) << LINE_BITS
            words[first : first + PAGE_LINES, _FIRST_VALUE:] = 0
        counts[PAGES] -= 1
        _place_moving(index, num)
        return False
    if counts[PAGES] == 4 * groups:
        counts[GROUPS] = 2 * groups
    return True


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
        if not _expand(index):
            return


@inlined
def probe(lines: Any, words: Any, key: np.uint64, line: int) -> Any:
    """Walk the page from the home line to the key, or to where it should be.

    Return the value, 0 if absent, and the line, which is full only if all are.
    """
    value = match_line(lines, line, key)
    for _ in range(PAGE_LINES):
        if value != 0 or words[line, LAST_VALUE] == 0:
            break
        line = next_line(line)
        value = match_line(lines, line, key)
    return value, line


@kernel
def create_slots(
    index: Index,
    keys: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> int:
    """Give slots to those of the keys at ``numbers`` that lack one, in this order.

    Each one's is put into ``slots``. Return ``DONE`` or ``CROWDED``.
    """
    lines, words, ids, free, counts, _moving, _homes, _slots, _missed = index
    grow(index, numbers.size)
    for j in range(numbers.size):
        key = keys[numbers[j]]
        line = home_of(hash_of(key, counts[SALT]), counts[GROUPS], counts[PAGES])
        value, line = probe(lines, words, key, line)
        if value == 0:
            if words[line, LAST_VALUE] != 0:
                return CROWDED
            if counts[FREE] > 0:
                counts[FREE] -= 1
                counts[TURNS] += 1
                slot = np.int64(free[counts[FREE]])
            else:
                slot = counts[USED]
                counts[USED] = slot + 1
            counts[ROWS] += 1
            ids[slot] = key
            place = 0
            while words[line, _FIRST_VALUE + place] != 0:
                place += 1
            value = slot + 1
            lines[line, place] = key
            words[line, _FIRST_VALUE + place] = value
        slots[numbers[j]] = np.int64(value) - 1
    return DONE


@kernel
def _passer(index: Index, line: int) -> tuple[int, int]:
    """Return the line and the place of an entry that found ``line`` full; -1 for no place."""
    lines, words = index.lines, index.words
    groups, pages = index.counts[GROUPS], index.counts[PAGES]
    here = next_line(line)
    for _ in range(PAGE_LINES - 1):
        for j in range(LINE_ENTRIES):
            if words[here, _FIRST_VALUE + j] == 0:
                break
            home = home_of(hash_of(lines[here, j], index.counts[SALT]), groups, pages)
            if ((here - home) & (PAGE_LINES - 1)) >= ((here - line) & (PAGE_LINES - 1)):
                return here, j
        if words[here, LAST_VALUE] == 0:
            break
        here = next_line(here)
    return line, -1


@inlined
def delete_entry(index: Index, key: np.uint64, line: int) -> None:
    """Delete the entry of a key that is in ``line``; its slot isn't made free."""
    lines, words = index.lines, index.words
    place = 0
    while lines[line, place] != key or words[line, _FIRST_VALUE + place] == 0:
        place += 1
    while place >= 0:
        last = LINE_ENTRIES - 1
        while words[line, _FIRST_VALUE + last] == 0:
            last -= 1
        lines[line, place] = lines[line, last]
        words[line, _FIRST_VALUE + place] = words[line, _FIRST_VALUE + last]
        words[line, _FIRST_VALUE + last] = 0
        if last != LINE_ENTRIES - 1:
            break  # it wasn't full: no id passed it
        here, place = _passer(index, line)
        if place >= 0:
            lines[line, last] = lines[here, place]
            words[line, _FIRST_VALUE + last] = words[here, _FIRST_VALUE + place]
        line = here
