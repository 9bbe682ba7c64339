"""The index: where the row of an id lies.

Entries are kept in *lines* of 64 bytes, one cache line each: four ids, then four
values, each a slot + 1 or 0 for a free place; a line fills in order. 256 lines are a
*page*, and an id that finds its home line full goes to the next line of its page.

Growth is linear hashing (Litwin, VLDB 1980) of pages: with ``L`` pages at the start of
a round, pages are split one after the other, each into itself and a new last page,
until there are ``2 L`` and the next round begins. How far the round has come follows
the load, so that no insert ever pays for more than a few pages, and nothing is rehashed
as a whole. The hash's low bits choose the page, its high bits the line.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.hashing import mix
from paramfleet_shared.tables.kernels.lanes import match_line, prefetch

__all__ = ["BATCH", "CROWDED", "DONE", "Index", "find_slots", "pages_for"]

DONE, CROWDED = 0, 1
"""What ``find_slots`` returns: all found, or a page had no place left."""

BATCH = 128
"""Ids whose lines are prefetched together."""

LINE_BITS = 8
PAGE_LINES = 1 << LINE_BITS
PAGE_ENTRIES = 4 * PAGE_LINES

ROUND_STARTS_AT, ROUND_ENDS_AT = 0.60, 0.80
"""Load of the unsplit pages between which a round runs."""

ROWS, ROUND_PAGES, PAGES = 0, 1, 2
"""What ``Index.counts`` holds: rows, pages at the round's start (a power of 2), pages."""

_LOW_HALF = np.uint64(0xFFFFFFFF)
_ZERO = np.uint64(0)
_TO_LINE = np.uint64(64 - LINE_BITS)


class Index(NamedTuple):
    """The arrays of one index, and what it counts."""

    lines: NDArray[np.uint64]
    """[max_lines, 8]"""
    ids: NDArray[np.uint64]
    """[max_rows]: the id of each slot."""
    counts: NDArray[np.int64]
    """[3]"""
    moving: NDArray[np.uint64]
    """[2, PAGE_ENTRIES]: ids and values of a page while it is split."""


def pages_for(num_rows: int) -> int:
    """Return how many pages the index of ``num_rows`` rows may need."""
    # A round of L pages ends with 2 L at load ROUND_ENDS_AT of the L: half of it of the 2 L.
    return int((num_rows + BATCH) / (PAGE_ENTRIES * ROUND_ENDS_AT / 2)) + 2


@inlined
def _home(bits: np.uint64, round_pages: int, pages: int) -> Any:
    """Return the line where an id of hash ``bits`` belongs."""
    page = np.int64(bits & np.uint64(2 * round_pages - 1))
    if page >= pages:  # its page is not split yet
        page -= round_pages
    return (page << LINE_BITS) | np.int64(bits >> _TO_LINE)


@inlined
def _next_line(line: int) -> Any:
    return (line & ~np.int64(PAGE_LINES - 1)) | ((line + 1) & np.int64(PAGE_LINES - 1))


@inlined
def _empty_page(index: Index, page: int) -> Any:
    """Move a page's entries to ``index.moving``; return their number."""
    num = 0
    first = page << LINE_BITS
    for line in range(first, first + PAGE_LINES):
        for j in range(4):
            value = index.lines[line, 4 + j]
            index.moving[0, num] = index.lines[line, j]
            index.moving[1, num] = value
            num += value != _ZERO
            index.lines[line, 4 + j] = _ZERO
    return num


@inlined
def _split_page(index: Index) -> None:
    """Split the round's next page into itself and a new last page."""
    round_pages = index.counts[ROUND_PAGES]
    page = index.counts[PAGES] - round_pages
    num = _empty_page(index, page)
    moved_bit = np.uint64(round_pages)
    fill = np.zeros(2 * PAGE_LINES, np.uint8)  # of the two pages' lines
    for i in range(num):
        key = index.moving[0, i]
        bits = mix(key)
        up = np.int64((bits & moved_bit) != _ZERO)
        line = np.int64(bits >> _TO_LINE)
        while fill[up * PAGE_LINES + line] == 4:
            line = (line + 1) & (PAGE_LINES - 1)
        place = np.int64(fill[up * PAGE_LINES + line])
        fill[up * PAGE_LINES + line] += 1
        line |= (page + up * round_pages) << LINE_BITS
        index.lines[line, place] = key
        index.lines[line, 4 + place] = index.moving[1, i]
    index.counts[PAGES] += 1
    if index.counts[PAGES] == 2 * round_pages:
        index.counts[ROUND_PAGES] = 2 * round_pages


@inlined
def _grow(index: Index, more: int) -> None:
    """Split pages until the round stands where the load with ``more`` rows wants it."""
    while True:
        round_pages = index.counts[ROUND_PAGES]
        load = (index.counts[ROWS] + more) / (round_pages * PAGE_ENTRIES)
        progress = (load - ROUND_STARTS_AT) / (ROUND_ENDS_AT - ROUND_STARTS_AT)
        wanted = round_pages + np.int64(max(0.0, min(1.0, progress)) * round_pages)
        if index.counts[PAGES] >= wanted:
            return
        _split_page(index)


@inlined
def _probe(index: Any, key: np.uint64, line: int, create: Any) -> Any:
    """Walk the page from the home line; return the value, 0 if absent or crowded."""
    lines, ids, counts = index
    for _ in range(PAGE_LINES):
        value = match_line(lines, line, key)
        if value != _ZERO:
            return value
        if lines[line, 7] == _ZERO:
            if not create:
                return _ZERO
            slot = counts[ROWS]
            counts[ROWS] = slot + 1
            ids[slot] = key
            place = 0
            while lines[line, 4 + place] != _ZERO:
                place += 1
            value = np.uint64(slot + 1)
            lines[line, place] = key
            lines[line, 4 + place] = value
            return value
        line = _next_line(line)
    return _ZERO


@kernel
def find_slots(
    index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64], create: Any
) -> int:
    """Put the slot of each key into ``slots``, -1 where it has none.

    With ``create`` (a bool) new keys get the next slots, in the order they come; there
    must be room for as many rows. Stops at the first key whose page has no place.
    """
    lines, ids, counts, _moving = index
    homes = np.empty(BATCH, np.int64)
    missed = np.empty(BATCH, np.int64)
    for start in range(0, keys.size, BATCH):
        num = min(BATCH, keys.size - start)
        if create:
            _grow(index, num)
        round_pages, pages = counts[ROUND_PAGES], counts[PAGES]
        for i in range(num):
            homes[i] = _home(mix(keys[start + i]), round_pages, pages)
            prefetch(lines, homes[i] << 3)
        num_missed = 0
        for i in range(num):
            value = match_line(lines, homes[i], keys[start + i])
            slots[start + i] = np.int64(value & _LOW_HALF) - 1
            missed[num_missed] = i
            num_missed += value == _ZERO
        for j in range(num_missed):
            line = homes[missed[j]]
            if lines[line, 7] != _ZERO:
                prefetch(lines, _next_line(line) << 3)
        for j in range(num_missed):
            i = missed[j]
            value = _probe((lines, ids, counts), keys[start + i], homes[i], create)
            slots[start + i] = np.int64(value & _LOW_HALF) - 1
            if create and value == _ZERO:
                return CROWDED
    return DONE
