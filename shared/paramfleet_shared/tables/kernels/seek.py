"""Looking up a batch of ids, a group at a time.

Memory answers after the time that hundreds of instructions take, and answers many
requests at once. So each key asks for its line of the index ``LEAD`` keys before that
is looked into; requests and work alternate from key to key, so that there are always some
on their way. Rows are used in a loop of their own, which asks for them in the same way:
one that did both would have no registers left, and its requests would wait for each other.

A key that its home line lacks is *missed*: a few in a hundred, which are looked for
together, in the next line of all and so on. A branch that follows what memory answers is
mispredicted, and throws away the requests behind it; so no key takes one of its own, and a
group is as large as its slots can stay near until its rows are used. Keys that are in no
line are created in the order they came.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.basics.lanes import (
    LANES,
    list_negative,
    match_line,
    prefetch,
)
from paramfleet_shared.tables.kernels.index import (
    DONE,
    GROUP,
    GROUPS,
    LAST_VALUE,
    LEAD,
    PAGE_LINES,
    PAGES,
    ROWS,
    SALT,
    TURNS,
    Index,
    create_slots,
    delete_entry,
    hash_of,
    home_of,
    next_line,
    probe,
)

__all__ = ["find_slots", "list_missed", "remove_keys"]

_NONE: Any = np.int64(0)
"""What counts begin with: a plain 0 has a type of its own, and kernels that are called with
it would be compiled for it, too."""


@inlined
def _aim(index: Any, keys: Any) -> None:
    """Note the home lines of a group's keys."""
    homes = index.homes
    groups, pages, salt = index.counts[GROUPS], index.counts[PAGES], index.counts[SALT]
    for j in range(keys.size):  # no prefetch in here: so it runs in vectors
        homes[j] = home_of(hash_of(keys[j], salt), groups, pages)


@inlined
def list_missed(missed: Any, slots: Any) -> Any:
    """List the numbers of a group's keys that have no slot, in order; return how many."""
    whole, num = slots.size - slots.size % LANES, _NONE
    for j in range(0, whole, LANES):
        num = list_negative(missed, num, slots, j)
    for j in range(whole, slots.size):
        missed[num] = j
        num += slots[j] < 0
    return num


@uncounted
def _look_home(index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64]) -> int:
    """Look into the home lines of a group; list the keys missed, and return how many."""
    lines, homes = index.lines, index.homes
    for j in range(min(keys.size, LEAD)):
        prefetch(lines, homes[j] << 3)
    for j in range(keys.size):
        prefetch(lines, homes[j + LEAD] << 3)
        slots[j] = match_line(lines, homes[j], keys[j]) - 1
    num_missed: int = list_missed(index.missed, slots)
    return num_missed


@uncounted
def _look_beyond(
    index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64], num_missed: int
) -> None:
    """Look for missed keys whose line is full in the next one, until none is left."""
    lines, words, homes, missed = index.lines, index.words, index.homes, index.missed
    for _ in range(PAGE_LINES):
        num_sought = _NONE
        for j in range(num_missed):
            number = missed[j]
            line = next_line(homes[number])
            prefetch(lines, line << 3)
            missed[num_sought] = number
            num_sought += words[homes[number], LAST_VALUE] != 0
            homes[number] = line
        num_missed = _NONE
        for j in range(num_sought):
            number = missed[j]
            slot = match_line(lines, homes[number], keys[number]) - 1
            slots[number] = slot
            missed[num_missed] = number
            num_missed += slot < 0
        if num_missed == 0:
            break


@uncounted
def find_slots(
    index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64], create: Any
) -> int:
    """Put the slot of each key into ``slots``, -1 where it has none.

    With ``create`` (a bool) new keys get free slots, then the next ones, in the order they
    come; there must be room for as many rows. Stops at the first key whose page has no place.
    """
    for start in range(0, keys.size, GROUP):
        some, its_slots = keys[start : start + GROUP], slots[start : start + GROUP]
        _aim(index, some)
        num_missed = _look_home(index, some, its_slots)
        if num_missed:
            _look_beyond(index, some, its_slots, num_missed)
            if create:
                num_absent = list_missed(index.missed, its_slots)
                outcome = create_slots(index, some, index.missed[:num_absent], its_slots)
                if outcome != DONE:
                    return outcome
    return DONE


@uncounted
def remove_keys(index: Index, keys: NDArray[np.uint64], slots: NDArray[np.int64]) -> None:
    """Delete the entries of keys; put the slot that each had into ``slots``, -1 for none.

    The slots aren't made free.
    """
    lines, words, homes, counts = index.lines, index.words, index.homes, index.counts
    for start in range(0, keys.size, GROUP):
        some = keys[start : start + GROUP]
        _aim(index, some)
        for j in range(min(some.size, LEAD)):
            prefetch(lines, homes[j] << 3)
        for j in range(some.size):
            prefetch(lines, homes[j + LEAD] << 3)
            value, line = probe(lines, words, some[j], homes[j])
            slots[start + j] = np.int64(value) - 1
            if value != 0:
                delete_entry(index, some[j], line)
                counts[ROWS] -= 1
                counts[TURNS] += 1
