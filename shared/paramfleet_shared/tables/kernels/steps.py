"""Stepping rows: from ids and gradients to new values."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.batches import add_span
from paramfleet_shared.tables.kernels.compiled import inlined, uncounted
from paramfleet_shared.tables.kernels.index import (
    AIMED,
    CROWDED,
    DONE,
    IN_RING,
    LEAD,
    PAGES,
    STRIP,
    aim,
    match,
    match_beyond,
    strip_of,
)
from paramfleet_shared.tables.kernels.reads import Table, ask_rows, create_rows
from paramfleet_shared.tables.kernels.rows import (
    AHEAD,
    LINE_FLOATS,
    Layout,
    copy_span,
    prefetch_row,
)
from paramfleet_shared.tables.kernels.rules import Step, noise_of, step_row

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
def _step_strip(step: Step, arrays: Any, keys: Any, slots: Any, layout: Layout) -> None:
    """Step the rows at ``slots``; ``arrays`` = (values, states, gradients of these rows)."""
    dim, value_pitch, pitch, first_state = layout
    if dim == LINE_FLOATS:  # a known width makes straight code
        for i in range(slots.size):
            state = slots[i] * pitch + first_state
            at = (slots[i] * value_pitch, state, state + LINE_FLOATS, i * LINE_FLOATS)
            step_row(step, arrays, at, LINE_FLOATS, noise_of(step, keys[i]))
    else:
        for i in range(slots.size):
            state = slots[i] * pitch + first_state
            at = (slots[i] * value_pitch, state, state + dim, i * dim)
            step_row(step, arrays, at, dim, noise_of(step, keys[i]))


@uncounted
def step_rows(
    step: Step, table: Table, keys: NDArray[np.uint64], grads: NDArray[np.float32]
) -> int:
    """Step the row of each key, creating new ones; return ``DONE`` or ``CROWDED``.

    ``grads`` is flat. A key that comes twice steps twice.
    """
    index, _firsts, values, floats, layout, _first, _total = table
    lines, words, _ids, counts, _moving, _fill, rings = index
    dim, _value_pitch, pitch, _first_state = layout
    homes, slots, missed, before = rings[0], rings[1], rings[2], rings[3]
    num, num_before = keys.size, 0
    aim(lines, counts, keys, (0, min(num, LEAD)), homes)
    for start in range(0, num + LEAD, STRIP):
        here, stop, ahead = min(start, num), min(start + STRIP, num), min(start + AIMED, num)
        num_missed = match(lines, keys, (here, stop), (homes, slots, missed))
        ask_rows(floats, pitch, strip_of(slots, here)[: stop - here], pitch)
        aim(lines, counts, keys, (min(start + LEAD, num), ahead), homes)
        num_absent = match_beyond(lines, words, keys, num_before, (homes, slots, before))
        if num_absent:
            pages = counts[PAGES]
            new = before[:num_absent]
            if create_rows(table, keys, new, slots) != DONE:
                return CROWDED
            if counts[PAGES] != pages:
                aim(lines, counts, keys, (here, ahead), homes)
        for j in range(num_before):
            prefetch_row(floats, max(slots[before[j] & IN_RING], 0) * pitch, pitch)
        first, end = max(start - LEAD, 0), max(min(start + STRIP - LEAD, num), 0)
        stepped = strip_of(slots, first)[: end - first]
        arrays = (values, floats, grads[first * dim : end * dim])
        _step_strip(step, arrays, keys[first:end], stepped, layout)
        missed, before, num_before = before, missed, num_missed
    return DONE
