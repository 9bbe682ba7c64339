"""What GEO's exchanges carry: differences one way, what others changed the other."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import Encoded, WireDtype
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["Delta", "Received", "ReceivedRows", "divided", "part_of"]


class ReceivedRows(NamedTuple):
    """Rows of a table that one answer brought."""

    removed: NDArray[np.int64]
    """Ids of rows that are to be dropped before the others are taken. [m]"""
    ids: NDArray[np.int64]
    """[n]"""
    served: NDArray[np.float32]
    """What the servers hold. [n, D]"""


@dataclass(slots=True)
class Received:
    """What one exchange brought."""

    step: int
    rows: dict[str, list[ReceivedRows]] = field(default_factory=dict)
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    slowest: int | None = None


class Delta(NamedTuple):
    """What is sent of one table: differences of rows by id, or of a dense table."""

    table: str
    values: NDArray[np.float32]
    rows: RowIds | None = None
    wire: WireDtype = "float32"
    """How it travels, and what is answered."""
    encoded: tuple[Encoded, ...] = ()
    """What travels instead of ``values`` if that isn't float32: all rows, or each
    pserver's part of a dense table."""
    num_steps: int = 0
    """Steps that the differences are of; 0 if there are none."""
    marks: NDArray[np.uint8] | None = None
    """What is said of each row beside its numbers, as of ``MARK_GROWN``; None if the table has
    no use for it. [n]"""
    now: int = 0
    """When it is, as rows keep it."""


def divided(
    deltas: Iterable[Delta], max_rows: Callable[[str], int]
) -> tuple[list[Delta], list[Delta]]:
    """Return what fits into one message, and the rest.

    Args:
        deltas: What is to be sent.
        max_rows: Returns how many rows of a table fit.
    """
    now, later = [], []
    for delta in deltas:
        if delta.rows is None:
            now.append(delta)
            continue
        limit = max_rows(delta.table)
        now.append(part_of(delta, slice(0, limit)))
        if len(delta.values) > limit:
            later.append(part_of(delta, slice(limit, len(delta.values))))
    return now, later


def part_of(delta: Delta, part: slice) -> Delta:
    """Return some of the rows of a delta; they stay sorted by shard."""
    assert delta.rows is not None, "only rows are divided"
    ids, offsets = delta.rows
    bounds = np.clip(offsets, part.start, part.stop) - part.start
    rows = RowIds(ids[part], np.minimum(bounds, len(ids[part])))
    encoded = tuple(each.part(part) for each in delta.encoded)
    marks = None if delta.marks is None else delta.marks[part]
    return delta._replace(values=delta.values[part], rows=rows, encoded=encoded, marks=marks)
