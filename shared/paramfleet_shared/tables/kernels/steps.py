"""Stepping rows: from ids and gradients to new values."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.batches import add_span
from paramfleet_shared.tables.kernels.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.index import CROWDED, DONE, LEAD, STRIP
from paramfleet_shared.tables.kernels.lanes import match_line, prefetch
from paramfleet_shared.tables.kernels.reads import Table, ask_rows, create_rows
from paramfleet_shared.tables.kernels.rows import (
    AHEAD,
    LINE_FLOATS,
    copy_span,
    prefetch_row,
)
from paramfleet_shared.tables.kernels.rules import (
    LAZY_ADAM,
    Step,
    noise_of,
    plain_adam,
    step_line,
    step_row,
)
from paramfleet_shared.tables.kernels.seek import (
    NONE,
    aim,
    ask_first,
    lag_of,
    look_beyond,
    shift,
    sort_out,
)

__all__ = ["Chains", "chain", "step_chains", "step_rows"]


class Chains(NamedTuple):
    """A batch's rows, grouped by slot, each group in order of arrival."""

    places: NDArray[np.int32]
    """Scratch: a hash table, a power of 2 of at least 2 n places, zero between calls."""
    slots: NDArray[np.int64]
    """[groups]: in order of first arrival."""
    heads: NDArray[np.int32]
    """[groups]: position in the batch of the first row."""
    tails: NDArray[np.int32]
    """[groups]: and of the last."""
    repeats: NDArray[np.int32]
    """[repeated]: the groups of more than one row."""
    nexts: NDArray[np.int32]
    """[n]: position of the same group's next row, -1 at its end."""


@uncounted
def chain(chains: Chains, batch: NDArray[np.int64]) -> tuple[int, int]:
    """Group a batch of slots; return (groups, repeated)."""
    # Arrays are taken out of the tuple once: each access would count a reference.
    places, slots, heads, tails, repeats, nexts = chains
    mask = np.int64(places.size - 1)
    groups, repeated = 0, 0
    for i in range(batch.size):
        slot = batch[i]
        nexts[i] = -1
        place = ((slot * np.int64(0x9E3779B1)) >> 12) & mask
        while True:
            group = np.int64(places[place]) - 1
            if group < 0:
                places[place] = groups + 1
                slots[groups] = slot
                heads[groups] = i
                tails[groups] = i
                groups += 1
                break
            if slots[group] == slot:
                if tails[group] == heads[group]:
                    repeats[repeated] = group
                    repeated += 1
                nexts[tails[group]] = i
                tails[group] = i
                break
            place = (place + 1) & mask
    places[:] = 0
    return groups, repeated


@uncounted
def step_chains(
    step: Step,
    table: Table,
    chains: Chains,
    counts: tuple[int, int],
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
) -> None:
    """Step the row of each group with the sum of its gradients.

    ``counts`` are what ``chain`` returned; ``keys`` are the batch's, ``grads`` is flat.
    """
    _index, _firsts, values, floats, layout, _first, total = table
    dim, value_pitch, pitch, first_state = layout
    _places, slots, heads, _tails, repeats, nexts = chains
    for i in range(counts[0]):
        if i + AHEAD < counts[0]:
            prefetch_row(floats, slots[i + AHEAD] * pitch, pitch)
            prefetch_row(grads, np.int64(heads[i + AHEAD]) * dim, dim)
        head = np.int64(heads[i])
        if nexts[head] < 0:
            state = slots[i] * pitch + first_state
            at = (slots[i] * value_pitch, state, state + dim, head * dim)
            step_row(step, (values, floats, grads), at, dim, noise_of(step, keys[head]))
    for i in range(counts[1]):
        group = np.int64(repeats[i])
        head = np.int64(heads[group])
        copy_span(total, 0, grads, head * dim, dim)
        follower = np.int64(nexts[head])
        while follower >= 0:
            add_span(total, 0, grads, follower * dim, dim)
            follower = np.int64(nexts[follower])
        state = slots[group] * pitch + first_state
        at = (slots[group] * value_pitch, state, state + dim, np.int64(0))
        step_row(step, (values, floats, total), at, dim, noise_of(step, keys[head]))


@inlined
def _step_one(step: Step, arrays: Any, slot: Any, key: Any, start: Any, shape: Any) -> None:
    """Step the row at ``slot`` with the gradient from ``start`` on."""
    dim, value_pitch, pitch, first_state = shape
    state = slot * pitch + first_state
    at = (slot * value_pitch, state, state + dim, start)
    step_row(step, arrays, at, dim, noise_of(step, key))


@inlined
def _step_one_line(
    step: Step, arrays: Any, slot: Any, key: Any, start: Any, shape: Any
) -> None:
    """As ``_step_one``, where values are one line."""
    dim, value_pitch, pitch, first_state = shape
    state = slot * pitch + first_state
    at = (slot * value_pitch, state, state + dim, start)
    step_line(step, arrays, at, noise_of(step, key))


@inlined
def _step_strip(
    step: Step, arrays: Any, batch: Any, lists: Any, shape: Any, step_one: Any
) -> Any:
    """Look into the home lines of a strip, and step the rows that were asked for before.

    ``arrays`` = (lines, values, floats, gradients), ``batch`` = (keys, where the strip
    starts), ``lists`` = (homes, slots, missed), ``shape`` = (dim, value pitch, pitch, first
    state), ``step_one`` is ``_step_one`` or its like. Return how many keys were missed,
    whose rows aren't stepped.
    """
    lines, values, floats, grads = arrays
    keys, start = batch
    homes, slots, missed = lists
    dim, _value_pitch, pitch, _first_state = shape
    strip, num_missed = keys[start : start + STRIP], 0
    arrays = (values, floats, grads)
    for j in range(strip.size + lag_of(keys, start)):
        if j < strip.size:
            prefetch(lines, homes[j + LEAD] << 3)
            slot = match_line(lines, homes[j], strip[j]) - 1
            missed[np.uint64(num_missed)] = start + j  # unsigned: not from the end
            num_missed += slot < 0
            slots[j + LEAD] = slot
            prefetch_row(floats, slot * pitch, pitch)
        i = start + j - LEAD
        if slots[j] >= 0:
            step_one(step, arrays, slots[j], keys[i], i * dim, shape)
    shift(slots, strip.size)
    return num_missed


@uncounted
def _step_home(
    step: Step,
    table: Table,
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
    start: int,
) -> int:
    """Call ``_step_strip``; a function of its own, so that it has registers enough.

    A row's address isn't in the TLB, and a processor can't retire a prefetch before it has
    walked the page tables. So what hides the walks is how many rows' instructions its
    window holds at a time: the fewer a row takes, the better. Known widths make straight
    code; Adam, whose rows are the most memory, has its own.
    """
    index, values, floats = table.arrays, table.values, table.floats
    arrays = (index.lines, values, floats, grads)
    lists = (index.strips[0], index.strips[1], index.missed[0])
    dim, value_pitch, pitch, first_state = table.layout
    is_line, batch = dim == LINE_FLOATS, (keys, start)
    is_plain_adam = step.rule == LAZY_ADAM and step.weight_decay == 0
    if is_line and first_state == LINE_FLOATS and is_plain_adam:
        shape = (LINE_FLOATS, 3 * LINE_FLOATS, 3 * LINE_FLOATS, LINE_FLOATS)
        mine = plain_adam(step)
        num_missed: int = _step_strip(mine, arrays, batch, lists, shape, _step_one_line)
    elif is_line:
        shape = (LINE_FLOATS, value_pitch, pitch, first_state)
        num_missed = _step_strip(step, arrays, batch, lists, shape, _step_one_line)
    else:
        shape = (dim, value_pitch, pitch, first_state)
        num_missed = _step_strip(step, arrays, batch, lists, shape, _step_one)
    return num_missed


@uncounted
def _step_found(
    step: Step, table: Table, keys: NDArray[np.uint64], grads: NDArray[np.float32], num: int
) -> None:
    """Step the rows of missed keys that were looked for."""
    numbers, slots, layout = table.arrays.missed[4], table.arrays.missed[5], table.layout
    arrays = (table.values, table.floats, grads)
    for j in range(num):
        i = numbers[j]
        _step_one(step, arrays, slots[j], keys[i], i * layout.dim, layout)


@uncounted
def step_rows(
    step: Step, table: Table, keys: NDArray[np.uint64], grads: NDArray[np.float32]
) -> int:
    """Step the row of each key, creating new ones; return ``DONE`` or ``CROWDED``.

    ``grads`` is flat. A key that comes twice steps twice, in order.
    """
    index, pitch = table.arrays, table.layout.pitch
    start, num_sought, num_found = NONE, NONE, NONE
    index.strips[1, :LEAD] = -1
    aim(index, keys, 0)
    ask_first(index, keys.size)
    while start < keys.size or num_sought or num_found:
        num_missed = _step_home(step, table, keys, grads, start)
        _step_found(step, table, keys, grads, num_found)
        num_absent = look_beyond(index, keys, start, num_sought, num_missed)
        num = num_sought + num_missed
        if num_absent and create_rows(table, keys, num) != DONE:
            return CROWDED
        num_sought, num_found = sort_out(index, num)
        if num_absent:  # what comes now may be found at once: it mustn't be overtaken
            _step_found(step, table, keys, grads, num_found)
            num_found = 0
        ask_rows(table, num_found, pitch)
        start += STRIP
        aim(index, keys, start)
    return DONE
