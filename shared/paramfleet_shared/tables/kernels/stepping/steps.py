"""Stepping rows: from ids and gradients to new values."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.batches import add_span
from paramfleet_shared.tables.kernels.index import DONE, GROUP
from paramfleet_shared.tables.kernels.reads import Table, find_rows
from paramfleet_shared.tables.kernels.rows import (
    AHEAD,
    LINE_FLOATS,
    copy_span,
    prefetch_row,
)
from paramfleet_shared.tables.kernels.stepping.rules import (
    LAZY_ADAM,
    Step,
    noise_of,
    plain_adam,
    step_line,
    step_row,
)

__all__ = ["Chains", "chain", "step_chains", "step_rows"]

_CREATE: Any = np.bool_(True)  # noqa: FBT003
"""A plain True has a type of its own, and what is called with it is compiled for it, too."""


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
    _index, _firsts, values, floats, layout, _states, _first, total = table
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
def _step_keys(
    step: Step, arrays: Any, keys: Any, start: Any, shape: Any, step_one: Any
) -> None:
    """Step the rows of a group, in order, with the gradients from row ``start`` on.

    ``arrays`` = (slots, values, floats, gradients), ``shape`` = (dim, value pitch, pitch,
    first state), ``step_one`` is ``_step_one`` or its like.
    """
    slots, values, floats, grads = arrays
    dim, _value_pitch, pitch, _first_state = shape
    arrays = (values, floats, grads)
    for i in range(keys.size):
        prefetch_row(floats, slots[i + AHEAD] * pitch, pitch)
        step_one(step, arrays, slots[i], keys[i], (start + i) * dim, shape)


@uncounted
def _step_group(
    step: Step,
    table: Table,
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
    start: int,
) -> None:
    """Call ``_step_keys``; a function of its own, so that it has registers enough.

    A row's address isn't in the TLB, and a processor can't retire a prefetch before it has
    walked the page tables. So what hides the walks is how many rows' instructions its
    window holds at a time: the fewer a row takes, the better. Known widths make straight
    code; Adam, whose rows are the most memory, has its own.
    """
    arrays = (table.arrays.slots, table.values, table.floats, grads)
    dim, value_pitch, pitch, first_state = table.layout
    is_line = dim == LINE_FLOATS
    is_adam_row = first_state == LINE_FLOATS and pitch == 3 * LINE_FLOATS
    if is_line and is_adam_row and step.rule == LAZY_ADAM and step.weight_decay == 0:
        shape = (LINE_FLOATS, 3 * LINE_FLOATS, 3 * LINE_FLOATS, LINE_FLOATS)
        _step_keys(plain_adam(step), arrays, keys, start, shape, _step_one_line)
    elif is_line:
        shape = (LINE_FLOATS, value_pitch, pitch, first_state)
        _step_keys(step, arrays, keys, start, shape, _step_one_line)
    else:
        shape = (dim, value_pitch, pitch, first_state)
        _step_keys(step, arrays, keys, start, shape, _step_one)


@uncounted
def _mark_group(
    slots: NDArray[np.int64], num: int, marks: NDArray[np.uint8], mark: Any
) -> None:
    """Give the places of a group's rows a mark."""
    for i in range(num):
        marks[slots[i]] = mark


@uncounted
def step_rows(
    step: Step,
    table: Table,
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
    marks: tuple[NDArray[np.uint8], Any],
    known: NDArray[np.int64],
) -> int:
    """Step the row of each key, creating new ones; return ``DONE`` or ``CROWDED``.

    ``grads`` is flat. A key that comes twice steps twice, in order. ``marks`` are those of all
    places, or none, and the one that they get; ``known`` as of ``find_rows``, of all keys.
    """
    for start in range(0, keys.size, GROUP):
        some = keys[start : start + GROUP]
        outcome = find_rows(table, some, _CREATE, known[start : start + GROUP])
        if outcome != DONE:
            return outcome
        _step_group(step, table, some, grads, start)
        if marks[0].size:
            _mark_group(table.arrays.slots, some.size, marks[0], marks[1])
    return DONE
