"""GEO's rows that count their use, or need to be admitted: what one exchange makes of a block.

A worker has copies of rows and decides by what it knows; the pserver knows what all have
counted. Whoever is first to see that an id is admitted, or that a row gets its embedx, decides
it, and it stays: a worker says so by marks, and is told of the others.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.parts import SparsePart, numbers_of
from paramfleet_shared.tables.rows.batch import MARK_GROWN
from paramfleet_shared.tables.sparse import SparseShard

__all__ = ["Added", "add_part"]


class Added(NamedTuple):
    """What an exchange has made of a block's rows."""

    is_changed: NDArray[np.bool_]
    """Of each of the part's ids whether its row was added to. [n]"""
    changed: NDArray[np.int64]
    """Their places. [m]"""
    made: NDArray[np.int64]
    """Places of rows that were made as their ids came often enough: the writer has none. [k]"""
    differing: NDArray[np.int64]
    """Places of rows that have their embedx, though the writer's copies don't. [l]"""


def add_part(rows: SparseShard, part: SparsePart, *, step: int) -> Added:
    """Add a worker's differences, and give rows to ids that are admitted.

    Args:
        rows: The block's.
        part: The worker's; its weights are known.
        step: The update's number, from 1.

    Raises:
        CapacityError: if there is no room for the new rows.
    """
    ids, marks = part.ids, part.marks
    if marks is None:
        marks = np.zeros(len(ids), np.uint8)
    uses = np.where(marks == MARK_GROWN, 0, marks).astype(np.int64)
    made = _admit(rows, ids, uses)
    is_changed = uses == 0
    if rows.admission is not None:
        is_changed &= rows.find(ids) >= 0
    numbers = numbers_of(part, rows.spec.num_unscaled)[is_changed]
    own, has_grown = ids[is_changed], marks[is_changed] == MARK_GROWN
    if rows.spec.optimizer.num_counts:
        rows.add(own, numbers, has_grown, unique=part.unique, now=part.now)
        differs = (rows.read_counted(own)[:, -1] != 0) & ~has_grown
    else:
        rows.push(own, numbers, lr=0.0, step=step, unique=part.unique, now=part.now)
        differs = np.zeros(len(own), np.bool_)
    changed = rows.find(own)
    return Added(is_changed, changed, rows.find(made), changed[differs])


def _admit(
    rows: SparseShard, ids: NDArray[np.int64], uses: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give rows to ids that are admitted; return those that the writer hasn't: int64 [k]."""
    if rows.admission is None:
        return np.empty(0, np.int64)
    unknown = np.flatnonzero(rows.find(ids) < 0)
    keys, inverse = np.unique(ids[unknown], return_inverse=True)
    least = np.full(len(keys), MARK_GROWN, np.int64)
    np.minimum.at(least, inverse, uses[unknown])
    admitted = rows.admission.accept(keys.view(np.uint64), least)
    rows.create(keys[admitted])
    return keys[admitted & (least > 0)]
