"""Pages made anew out of former ones and of rows that changed, or changed as they are.

To make them anew serves splits of pages, their contraction, and merges that need another
overflow page: every row of the former pages goes to where the hash says now. n = pages to be
made, E = rows they get.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.pages import (
    COUNT,
    HEADER_WORDS,
    OVERFLOW_FILE,
    TAG,
    WRITER,
    Form,
    page_of,
    seal,
)
from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = [
    "REMOVED",
    "Buckets",
    "Changes",
    "change_rows",
    "collect",
    "count_rows",
    "emit",
    "next_pages",
    "put_rows",
    "take_rows",
]

REMOVED = -1
"""As the number of a row: there is none any more."""

_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class Changes(NamedTuple):
    """What changes in the pages, each key once."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.uint32]
    """[m, pitch]"""
    numbers: NDArray[np.int64]
    """Which of ``rows`` is a key's, or ``REMOVED``."""


class Buckets(NamedTuple):
    """The rows of each page to be made."""

    starts: NDArray[np.int64]
    """[n + 1]: room for the rows of each page, those that may come included."""
    fills: NDArray[np.int64]
    """[n]: how many there are."""
    keys: NDArray[np.uint64]
    """[room]"""
    sources: NDArray[np.int64]
    """[room]: where in the former pages a row is, in words of 32 bits; -1 - i is changed row
    i."""


@kernel
def count_rows(words: NDArray[np.uint64], num: int, form: Form) -> int:
    """Return how many rows pages beside each other have."""
    total = np.uint64(0)
    for i in range(num):
        total += words[i * form.page_words + COUNT] & _LOW
    return int(total)


@kernel
def take_rows(
    images: tuple[NDArray[np.uint64], NDArray[np.uint32]],
    num: int,
    form: Form,
    keys: NDArray[np.uint64],
    rows: NDArray[np.uint32],
) -> None:
    """Copy all keys and rows of pages beside each other, as words of 64 and of 32 bits."""
    words, halves = images
    to = 0
    for image in range(num):
        start = image * form.page_words
        row = 2 * (start + HEADER_WORDS + form.holds)
        for i in range(np.int64(words[start + COUNT] & _LOW)):
            keys[to] = words[start + HEADER_WORDS + i]
            for c in range(form.pitch):
                rows[to, c] = halves[row + c]
            row += form.pitch
            to += 1


@kernel
def put_rows(
    images: tuple[NDArray[np.uint64], NDArray[np.uint32]],
    num: int,
    form: Form,
    changed: tuple[NDArray[np.uint32], NDArray[np.bool_]],
    writer: int,
) -> None:
    """Overwrite rows where ``take_rows`` found them; all of the pages are the batch's then.

    Args:
        images: Of ``take_rows``, as are the next two.
        num: Of pages.
        form: Of them.
        changed: All rows, and which of them are to be written.
        writer: The batch.
    """
    words, halves = images
    rows, is_changed = changed
    at = 0
    for image in range(num):
        start = image * form.page_words
        row = 2 * (start + HEADER_WORDS + form.holds)
        for _ in range(np.int64(words[start + COUNT] & _LOW)):
            if is_changed[at]:
                for c in range(form.pitch):
                    halves[row + c] = rows[at, c]
            row += form.pitch
            at += 1
        words[start + WRITER] = np.uint64(writer)
        seal(words, start, form)


@kernel
def change_rows(
    images: tuple[NDArray[np.uint64], NDArray[np.uint32]],
    numbers: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    form: Form,
    shape: tuple[int, int],
    changes: Changes,
    writer: int,
) -> tuple[int, bool]:
    """Change, add and remove rows where pages have room; all of the pages are the batch's then.

    Where one hasn't, or a page with overflow pages loses a row, it stops: the pages have a part
    of the changes then, and are to be made anew with all of them.

    Args:
        images: Pages, and their overflow pages behind them, as words of 64 and of 32 bits.
        numbers: Of the pages, sorted; of the overflow pages, sorted; and where each of these is
            among the images.
        form: Of all pages.
        shape: (groups, pages).
        changes: Of keys that belong to these pages, sorted by pages.
        writer: The batch.

    Returns:
        By how many rows there are more, and whether all changes are done.
    """
    words, halves = images
    own = numbers[0]
    more, at = 0, 0
    for k in range(changes.keys.size):
        key, number = changes.keys[k], changes.numbers[k]
        home = page_of(mix(key ^ form.salt), shape[0], shape[1])
        while own[at] != home:
            at += 1
        image, place, room = _locate(words, numbers, at, key, form)
        if number >= 0 and place == 0:
            if room < 0:
                return more, False
            image, place = room, _add_key(words, room, key, form)
            more += 1
        if number >= 0:
            _copy(halves, _row(image, place, form), changes.rows[number], 0, form)
        elif place:
            if words[at * form.page_words + COUNT] >> _32:
                return more, False
            _drop(words, halves, image, place, form)
            more -= 1
    for image in range(own.size + numbers[1].size):
        words[image * form.page_words + WRITER] = np.uint64(writer)
        seal(words, image * form.page_words, form)
    return more, True


@inlined
def _locate(words: Any, numbers: Any, image: Any, key: Any, form: Any) -> Any:
    """Look for a key on a page and its overflow pages.

    Returns:
        The image and the place of its row, from 1, or 0 if it has none; then also the first
        image with room for it, or -1.
    """
    _own, extra, places = numbers
    room, place = -1, 0
    while True:
        start = image * form.page_words
        count = np.int64(words[start + COUNT] & _LOW)
        for i in range(count):  # in vectors: no way out of it
            place += (i + 1) * (words[start + HEADER_WORDS + i] == key)
        if room < 0 and count < form.holds:
            room = image
        following = np.int64(words[start + COUNT] >> _32)
        if place or following == 0:
            return image, place, room
        image = places[_place_in(extra, following - 1)]


@inlined
def _add_key(words: Any, image: Any, key: Any, form: Any) -> Any:
    """Put a key behind the others of an image that has room; return its place, from 1."""
    start = image * form.page_words
    place = np.int64(words[start + COUNT] & _LOW) + 1
    words[start + HEADER_WORDS + place - 1] = key
    words[start + COUNT] += np.uint64(1)
    return place


@inlined
def _drop(words: Any, halves: Any, image: Any, place: Any, form: Any) -> None:
    """Remove a row of an image: the last one takes its place."""
    start = image * form.page_words
    last = np.int64(words[start + COUNT] & _LOW)
    words[start + HEADER_WORDS + place - 1] = words[start + HEADER_WORDS + last - 1]
    words[start + COUNT] -= np.uint64(1)
    _copy(halves, _row(image, place, form), halves, _row(image, last, form), form)


@inlined
def _row(image: Any, place: Any, form: Any) -> Any:
    """Return where the row at a place, from 1, is, in words of 32 bits."""
    start = image * form.page_words + HEADER_WORDS + form.holds
    return 2 * start + (place - 1) * form.pitch


@inlined
def _copy(target: Any, to: Any, source: Any, start: Any, form: Any) -> None:
    """Copy a row."""
    for c in range(form.pitch):
        target[to + c] = source[start + c]


@kernel
def next_pages(
    words: NDArray[np.uint64], first: int, last: int, form: Form, out: NDArray[np.int64]
) -> int:
    """Put the overflow pages to ``out`` that pages name; return how many."""
    num = 0
    for i in range(first, last):
        following = np.int64(words[i * form.page_words + COUNT] >> _32)
        if following:
            out[num] = following - 1
            num += 1
    return num


@inlined
def _place_in(sorted_numbers: Any, number: Any) -> Any:
    """Return where a number is that must be there, by halving."""
    low, high = 0, sorted_numbers.size
    while low < high:
        middle = (low + high) >> 1
        if sorted_numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _home(key: Any, numbers: Any, form: Any, shape: Any) -> Any:
    return _place_in(numbers, page_of(mix(key ^ form.salt), shape[0], shape[1]))


@kernel
def collect(
    words: NDArray[np.uint64],
    num_images: int,
    form: Form,
    made: tuple[NDArray[np.int64], tuple[int, int]],
    changes: Changes,
    buckets: Buckets,
) -> tuple[int, int]:
    """Give each page to be made its rows.

    Args:
        words: The former pages, overflow pages among them.
        num_images: How many.
        form: Of all pages.
        made: The numbers of the pages to be made, sorted, and (groups, pages) from now on.
        changes: Of keys that belong to these pages.
        buckets: Filled.

    Returns:
        By how many rows there are more, and how many overflow pages are needed.
    """
    numbers, shape = made
    starts, fills, keys, sources = buckets
    starts[:] = 0
    homes = np.empty(keys.size, np.int32)
    num = 0
    for image in range(num_images):
        start = image * form.page_words
        for i in range(np.int64(words[start + COUNT] & _LOW)):
            homes[num] = _home(words[start + HEADER_WORDS + i], numbers, form, shape)
            starts[homes[num] + 1] += 1
            num += 1
    for k in range(changes.keys.size):
        homes[num + k] = _home(changes.keys[k], numbers, form, shape)
        starts[homes[num + k] + 1] += 1
    for i in range(numbers.size):
        starts[i + 1] += starts[i]
        fills[i] = 0
    num = 0
    for image in range(num_images):
        start = image * form.page_words
        rows = 2 * (start + HEADER_WORDS + form.holds)
        for i in range(np.int64(words[start + COUNT] & _LOW)):
            home = homes[num]
            at = starts[home] + fills[home]
            keys[at] = words[start + HEADER_WORDS + i]
            sources[at] = rows + i * form.pitch
            fills[home] += 1
            num += 1
    more = _apply(changes, homes[num:], buckets)
    needed = 0
    for i in range(numbers.size):
        needed += max(0, (fills[i] - 1) // form.holds)
    return more, needed


@inlined
def _apply(changes: Any, homes: Any, buckets: Any) -> Any:
    """Change, add and remove rows in their buckets; return by how many there are more."""
    starts, fills, keys, sources = buckets
    more = 0
    for k in range(changes.keys.size):
        home, key, number = homes[k], changes.keys[k], changes.numbers[k]
        first, at = starts[home], -1
        for i in range(first, first + fills[home]):
            if keys[i] == key:
                at = i
        if number >= 0:
            if at < 0:
                at = first + fills[home]
                keys[at] = key
                fills[home] += 1
                more += 1
            sources[at] = -1 - number
        elif at >= 0:
            fills[home] -= 1
            keys[at] = keys[first + fills[home]]
            sources[at] = sources[first + fills[home]]
            more -= 1
    return more


@kernel
def emit(
    former: NDArray[np.uint32],
    changed: NDArray[np.uint32],
    form: Form,
    buckets: Buckets,
    made: tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]],
    writer: int,
) -> int:
    """Write the pages, and behind them their overflow pages; return how many of those.

    Args:
        former: The former pages, as words of 32 bits.
        changed: Rows of the changes, flat.
        form: Of all pages.
        buckets: Of ``collect``.
        made: Where to, zeros, as words of 64 and of 32 bits; the numbers of the pages, and
            numbers for overflow pages. Those that none needs are written as empty pages.
        writer: The batch.
    """
    words, halves, numbers, extra_numbers = made
    starts, fills, keys, sources = buckets
    used = 0
    for page in range(numbers.size):
        start, tag = page * form.page_words, numbers[page]
        first, left = starts[page], fills[page]
        while True:
            count = min(left, form.holds)
            left -= count
            following = extra_numbers[used] + 1 if left else 0
            words[start + TAG] = np.uint64(tag)
            words[start + COUNT] = np.uint64(count) | (np.uint64(following) << _32)
            words[start + WRITER] = np.uint64(writer)
            to = 2 * (start + HEADER_WORDS + form.holds)
            for i in range(count):
                words[start + HEADER_WORDS + i] = keys[first + i]
                source = sources[first + i]
                rows, at = (
                    (former, source) if source >= 0 else (changed, (-1 - source) * form.pitch)
                )
                for c in range(form.pitch):
                    halves[to + c] = rows[at + c]
                to += form.pitch
            seal(words, start, form)
            if left == 0:
                break
            first += count
            start = (numbers.size + used) * form.page_words
            tag = extra_numbers[used] + OVERFLOW_FILE
            used += 1
    for spare in range(used, extra_numbers.size):
        start = (numbers.size + spare) * form.page_words
        words[start + TAG] = np.uint64(extra_numbers[spare] + OVERFLOW_FILE)
        words[start + WRITER] = np.uint64(writer)
        seal(words, start, form)
    return used
