"""The kernels of text: words to numbers, and numbers to what skip-gram trains on.

They release the GIL. A word is a run of bytes that ``fold`` doesn't map to 0, each as it
is mapped. Known words are in a table of open addressing: ``slots`` uint32 [a power of 2],
0 or a word's number + 1; ``spans`` int64 [W, 2], where a word's bytes begin in ``letters``
and how many they are; ``counts`` int64 [W]; ``used`` int64 [2], words and letters.

Chance is SplitMix64 (Steele, Lea, Flood 2014): a state that grows by a constant, mixed.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted

__all__ = ["Table", "break_behind", "count_words", "fill_alias", "number_words", "sample_words"]

Table = tuple[
    NDArray[np.uint32],
    NDArray[np.int64],
    NDArray[np.uint8],
    NDArray[np.int64],
    NDArray[np.int64],
]
"""``slots``, ``spans``, ``letters``, ``counts``, ``used``."""

_FNV_BASIS: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_LOW: Final = np.uint64(0xFFFFFFFF)


@uncounted
def break_behind(text: NDArray[np.uint8], fold: NDArray[np.uint8]) -> int:
    """Return where the text's last word begins, if no byte ends it; else the text's end."""
    at = text.size
    while at > 0 and fold[text[at - 1]] != 0:
        at -= 1
    return at


@uncounted
def _next_word(text: Any, at: Any, fold: Any) -> tuple[Any, Any, Any]:
    """Return begin, end and hash of the next word; begin == end behind the last one."""
    size = text.size
    while at < size and fold[text[at]] == 0:
        at += 1
    begin, digest = at, _FNV_BASIS
    while at < size and fold[text[at]] != 0:
        digest = (digest ^ np.uint64(fold[text[at]])) * _FNV_PRIME
        at += 1
    return begin, at, digest ^ (digest >> np.uint64(29))


@uncounted
def _seek(text: Any, word: tuple[Any, Any, Any], fold: Any, table: Table) -> tuple[Any, Any]:
    """Return the slot where a word is, or belongs, and its number, -1 if it isn't there."""
    slots, spans, letters, _, _ = table
    begin, end, digest = word
    mask = np.uint64(slots.size - 1)
    slot = digest & mask
    while slots[slot] != 0:
        number = np.int64(slots[slot]) - 1
        if spans[number, 1] == end - begin:
            same, first = True, spans[number, 0]
            for at in range(end - begin):
                if letters[first + at] != fold[text[begin + at]]:
                    same = False
                    break
            if same:
                return slot, number
        slot = (slot + np.uint64(1)) & mask
    return slot, np.int64(-1)


@uncounted
def count_words(
    text: NDArray[np.uint8], begin: int, fold: NDArray[np.uint8], table: Table
) -> int:
    """Count the words of a text from ``begin`` on, adding those that are new.

    Returns:
        -1 at the end of the text; else where the word begins that there is no room for.
    """
    slots, spans, letters, counts, used = table
    at = begin
    while True:
        word = _next_word(text, at, fold)
        begin, at, _ = word
        if begin == at:
            return -1
        slot, number = _seek(text, word, fold, table)
        if number < 0:
            number, first = used[0], used[1]
            full = 2 * number >= slots.size or number >= counts.size
            if full or first + at - begin > letters.size:
                return begin
            for letter in range(at - begin):
                letters[first + letter] = fold[text[begin + letter]]
            spans[number, 0], spans[number, 1] = first, at - begin
            slots[slot] = number + 1
            used[0] += 1
            used[1] += at - begin
        counts[number] += 1


@uncounted
def number_words(
    text: NDArray[np.uint8], fold: NDArray[np.uint8], table: Table, numbers: NDArray[np.int32]
) -> int:
    """Write the numbers of a text's known words; return how many they are.

    ``numbers`` has room for half of the text's bytes, and one.
    """
    at, count = 0, 0
    while True:
        word = _next_word(text, at, fold)
        begin, at, _ = word
        if begin == at:
            return count
        _, number = _seek(text, word, fold, table)
        if number >= 0:
            numbers[count] = number
            count += 1


@uncounted
def fill_alias(
    share: NDArray[np.float64],
    limits: NDArray[np.uint32],
    others: NDArray[np.int32],
    work: NDArray[np.int64],
) -> None:
    """Make Walker's alias table by Vose's method.

    Args:
        share: float64 [V], with a mean of 1; used up.
        limits: uint32 [V]: becomes the chance, of 2**32, that a place stands for itself.
        others: int32 [V]: becomes what a place stands for otherwise.
        work: int64 [V].
    """
    small, large = 0, share.size
    for at in range(share.size):
        limits[at], others[at] = _LOW, at
        if share[at] < 1.0:
            work[small] = at
            small += 1
        else:
            large -= 1
            work[large] = at
    while small > 0 and large < share.size:
        small -= 1
        less, more = work[small], work[large]
        limits[less] = np.uint32(min(share[less], 1.0) * 4294967295.0)
        others[less] = more
        share[more] -= 1.0 - share[less]
        if share[more] < 1.0:
            large += 1
            work[small] = more
            small += 1


@inlined
def _mixed(state: Any) -> Any:
    mixed = (state ^ (state >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


@uncounted
def sample_words(
    numbers: NDArray[np.int32],
    keep: NDArray[np.uint32],
    alias: tuple[NDArray[np.uint32], NDArray[np.int32]],
    chance: tuple[np.uint64, int],
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> int:
    """Keep some words of a text, draw how far each looks, and negatives for each.

    A word's draws are, one after the other: whether it stays, its reach, its negatives.

    Args:
        numbers: int32 [n]: words of a text.
        keep: uint32 [V]: the chance, of 2**32, that a word stays.
        alias: ``limits`` and ``others`` of ``fill_alias``.
        chance: The state to begin with, and the widest reach.
        out: Words int64 [n]; reaches int64 [n], from 1 to the widest; and targets int64
            [n, 1 + N], the word itself and its negatives.

    Returns:
        How many words were kept.
    """
    limits, others = alias
    state, window = chance
    words, reaches, targets = out
    num_words, kept = np.uint64(limits.size), 0
    for number in numbers:
        state += _GAMMA
        if (_mixed(state) >> np.uint64(32)) > np.uint64(keep[number]):
            continue
        state += _GAMMA
        words[kept] = targets[kept, 0] = number
        reaches[kept] = 1 + np.int64(
            ((_mixed(state) >> np.uint64(32)) * np.uint64(window)) >> np.uint64(32)
        )
        for each in range(1, targets.shape[1]):
            state += _GAMMA
            drawn = _mixed(state)
            place = np.int64(((drawn >> np.uint64(32)) * num_words) >> np.uint64(32))
            itself = (drawn & _LOW) <= np.uint64(limits[place])
            targets[kept, each] = place if itself else np.int64(others[place])
        kept += 1
    return kept
