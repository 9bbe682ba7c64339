"""Pages of rows: which page a key is on, how a page is checked and searched.

A page is a header of 32 bytes, keys, then their rows:

* a checksum of all the rest, 64 bits;
* the page's number, and in bits 48 and above which file it is of: a page that was written to
  another place is seen;
* how many rows it has, and in the high half its overflow page's number + 1;
* the number of the batch that wrote it.

Pages are addressed by linear hashing with partial expansions, as the lines of the index in
memory are (``kernels.index``), but by the hash of the key and another random number: rows that
come in the order of pages must not come in the order of the index's lines, which they would
overfill.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel
from paramfleet_shared.tables.kernels.basics.hashing import mix

__all__ = [
    "ABSENT",
    "COUNT",
    "FOUND",
    "HEADER_WORDS",
    "OVERFLOW_FILE",
    "TAG",
    "WORD_BYTES",
    "WRITER",
    "Form",
    "checksum_of",
    "find_rows",
    "first_damaged",
    "make_runs",
    "page_of",
    "pages_of",
    "seal",
    "within",
    "write_empty",
]

HEADER_WORDS = 4
"""Of 64 bits."""

WORD_BYTES = 8
TAG, COUNT, WRITER = 1, 2, 3
OVERFLOW_FILE = 1 << 48
"""Added to the numbers of overflow pages in their tags."""

ABSENT, FOUND = 0, 1
"""What is known of a key; -p means that overflow page p - 1 must be searched, too."""

_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_29, _35 = np.uint64(29), np.uint64(35)
_TO_THIRD = np.uint64(40)
_THIRD_MASK = np.uint64(0xFFFF)


class Form(NamedTuple):
    """What all pages of a tier have in common."""

    page_words: int
    """Words of 64 bits in a page."""
    holds: int
    """Rows of a page."""
    pitch: int
    """Words of 32 bits in a row."""
    salt: np.uint64
    """The random number of this tier: part of its hash and of its checksums."""


@inlined
def page_of(bits: Any, groups: Any, pages: Any) -> Any:
    """Return the page where a key of hash ``bits`` belongs."""
    second_half = pages >= 3 * groups
    expanded = pages - (3 * groups if second_half else 2 * groups)
    mask = 4 * groups - 1 if second_half else 2 * groups - 1
    group = np.int64(bits) & (groups - 1)
    third = np.int64((bits >> _TO_THIRD) & _THIRD_MASK) * 3 >> 16
    in_thirds = (group < expanded) != second_half
    return group + third * groups if in_thirds else np.int64(bits) & mask


@kernel
def pages_of(
    keys: NDArray[np.uint64], form: Form, shape: tuple[int, int], out: NDArray[np.int64]
) -> None:
    """Put the page of each key to ``out``; ``shape`` = (groups, pages)."""
    for i in range(keys.size):
        out[i] = page_of(mix(keys[i] ^ form.salt), shape[0], shape[1])


@kernel
def within(
    keys: NDArray[np.uint64],
    salt: np.uint64,
    numbers: tuple[int, int, int],
    out: NDArray[np.int64],
) -> int:
    """Put to ``out`` which keys have hashes that end with some numbers; return how many.

    Args:
        keys: uint64 [n].
        salt: Of the tier.
        numbers: The last bits of a hash, as a mask; the first number, and that behind the last.
        out: int64 [n].
    """
    mask, first, last = numbers
    num = 0
    for i in range(keys.size):
        number = np.int64(mix(keys[i] ^ salt)) & mask
        if first <= number < last:
            out[num] = i
            num += 1
    return num


@inlined
def checksum_of(words: Any, start: Any, num: Any, salt: Any) -> Any:
    """Return the checksum of a page's words but the first, in four lanes."""
    a = (words[start + TAG] ^ salt) * _P1
    b = (words[start + COUNT] ^ _P3) * _P1
    c = (words[start + WRITER] ^ _P2) * _P1
    d = salt ^ _P1
    for i in range(start + HEADER_WORDS, start + num, 4):
        a = (a ^ words[i]) * _P1
        b = (b ^ words[i + 1]) * _P1
        c = (c ^ words[i + 2]) * _P1
        d = (d ^ words[i + 3]) * _P1
        a ^= a >> _29
        b ^= b >> _29
        c ^= c >> _29
        d ^= d >> _29
    a = (a ^ (b >> _35)) * _P2 ^ b
    c = (c ^ (d >> _35)) * _P2 ^ d
    return mix(a * _P3 ^ c)


@inlined
def seal(words: Any, start: Any, form: Any) -> None:
    """Give a page its checksum."""
    words[start] = checksum_of(words, start, form.page_words, form.salt)


@kernel
def first_damaged(
    words: NDArray[np.uint64], tags: NDArray[np.int64], form: Form, writer: int
) -> int:
    """Return the first of pages beside each other that isn't as it was written; -1 for none.

    ``tags`` are those that they must have; ``writer`` is the batch that must have written
    them, or -1 for any.
    """
    for i in range(tags.size):
        start = i * form.page_words
        wrong = words[start + TAG] != np.uint64(tags[i])
        wrong |= writer >= 0 and words[start + WRITER] != np.uint64(writer)
        wrong |= np.int64(words[start + COUNT] & _LOW) > form.holds
        if wrong or words[start] != checksum_of(words, start, form.page_words, form.salt):
            return i
    return -1


@kernel
def find_rows(
    images: tuple[NDArray[np.uint64], NDArray[np.uint32]],
    form: Form,
    wanted: tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]],
    found: NDArray[np.int64],
    out: NDArray[np.uint32],
) -> None:
    """Copy the rows of keys out of pages that were checked.

    Args:
        images: Pages beside each other, as words of 64 and of 32 bits.
        form: Of the pages.
        wanted: Keys, the place of each one's page, and which row of ``out`` and ``found`` is
            the key's.
        found: Told what is known of each key.
        out: uint32 [m, pitch]; the row of a key that isn't there is left.
    """
    words, halves = images
    keys, places, numbers = wanted
    for k in range(keys.size):
        start, key, place = places[k] * form.page_words, keys[k], 0
        count = np.int64(words[start + COUNT] & _LOW)
        for i in range(count):  # in vectors: no way out of it
            place += (i + 1) * (words[start + HEADER_WORDS + i] == key)
        to = numbers[k]
        if place == 0:
            found[to] = -np.int64(words[start + COUNT] >> _32)
            continue
        found[to] = FOUND
        row = 2 * (start + HEADER_WORDS + form.holds) + (place - 1) * form.pitch
        for c in range(form.pitch):
            out[to, c] = halves[row + c]


@kernel
def make_runs(pages: NDArray[np.int64], gap: int, most: int, runs: NDArray[np.int64]) -> int:
    """Cut sorted pages into runs to be read at once; return how many.

    Args:
        pages: Sorted; each may be there many times.
        gap: So many pages that nobody wants may be between two of a run.
        most: Pages of a run.
        runs: Filled, [n, 4]: first page, pages, first of ``pages``, the one after the last.
    """
    num, first = 0, 0
    for i in range(1, pages.size + 1):
        ends = i == pages.size
        if not ends:
            ends = pages[i] - pages[i - 1] > gap + 1 or pages[i] - pages[first] >= most
        if ends:
            runs[num, 0], runs[num, 1] = pages[first], pages[i - 1] - pages[first] + 1
            runs[num, 2], runs[num, 3] = first, i
            num += 1
            first = i
    return num


@kernel
def write_empty(words: NDArray[np.uint64], tags: NDArray[np.int64], form: Form) -> None:
    """Make pages beside each other, which are zeros, pages without rows."""
    for i in range(tags.size):
        words[i * form.page_words + TAG] = np.uint64(tags[i])
        seal(words, i * form.page_words, form)
