"""All columns of rows and ranges, values and optimizer states, as owners read and write them.

Passes read them at their beginning, and write them at their end, past the optimizer.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.parts import DensePart, SparsePart
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.tables.rows.admission import HAS_ROW
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.sparse import SparseShard

__all__ = [
    "CameIds",
    "PassPart",
    "read_free_rows_jobs",
    "read_range_job",
    "read_rows_jobs",
    "row_states",
    "states_shape",
    "values_shape",
    "write_jobs",
]


class CameIds(NamedTuple):
    """Ids that came in a pass and had no row in it, at first at least."""

    ids: NDArray[np.int64]
    """Sorted by shard, each once; of a table that counts them, else none. [n]"""
    offsets: NDArray[np.int64]
    """Bounds of this server's shards in ``ids``. [shards + 1]"""
    uses: NDArray[np.int32]
    """In how many steps each came before it got a row. [n]"""
    refused: int
    """How often any id came and got none, of any table with an entry."""


class PassPart(NamedTuple):
    """What a worker writes back of one table at the end of a pass."""

    table: Table
    content: SparsePart | DensePart
    """Which rows, or which values of the range; and their values, float32."""
    states: NDArray[np.float32]
    """[n, W] of rows, [S, m] of a range."""
    writes: int
    """How often others had written to the table when the pass read it."""
    updates: int
    """Steps that the table has taken in all, those of the pass included."""
    stepped: bool
    """Of a range: whether its optimizer has stepped ever."""
    came: CameIds | None = None
    """Of a table with an entry, if some came."""
    missed: tuple[tuple[int, int, int], ...] = ()
    """Of a range: how many of these steps had no gradient for each of its values."""

    @property
    def num_bytes(self) -> int:
        """Return the memory that its tensors take."""
        return sum(each.nbytes for each in self.tensors().values())

    def fields(self) -> dict[str, Any]:
        """Return what it says of itself on the wire."""
        about = {"table": self.table.spec.name, "writes": self.writes, "updates": self.updates}
        about["stepped"] = self.stepped
        if isinstance(self.content, DensePart):
            where = self.content.where
            about |= {"start": where.start, "stop": where.stop}
        if self.missed:
            about["missed"] = [*map(list, self.missed)]
        if self.came is not None:
            about["refused"] = self.came.refused
        return about

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return its tensors by the names that they have there."""
        content = self.content
        tensors: dict[str, NDArray[Any]] = {}
        if isinstance(content, SparsePart):
            tensors = {"ids": content.ids, "offsets": content.offsets}
        if self.came is not None:
            ids, offsets, uses, _ = self.came
            tensors |= {"came": ids, "came_offsets": offsets, "uses": uses}
        return {**tensors, "values": content.numbers.rows, "states": self.states}


def row_states(table: SparseTable) -> int:
    """Return how many floats of state a row has beside its value: W."""
    return RowLayout.of(table.spec).states.pitch


def values_shape(table: Table, num: int) -> tuple[int, ...]:
    """Return the shape of the values of ``num`` rows, or of so many values of a range."""
    return (num, table.spec.dim) if isinstance(table, SparseTable) else (num,)


def states_shape(table: Table, num: int) -> tuple[int, int]:
    """Return the shape of the states of ``num`` rows, or of so many values of a range."""
    if isinstance(table, SparseTable):
        return num, row_states(table)
    return table.spec.optimizer.num_state_columns, num


def read_rows_jobs(
    table: SparseTable,
    rows: RowIds,
    values: NDArray[np.float32],
    states: NDArray[np.float32],
    waits: NDArray[np.int32] | None = None,
) -> list[Job]:
    """Read rows, and create none: those that don't exist are as they would begin.

    Args:
        table: Whose rows they are.
        rows: Which.
        values: [n, D]; filled.
        states: [n, W]; filled.
        waits: [n]; filled with how often each id must come to get a row, 0 of one that has it,
            as ``Admission.waits`` says. None where the table has no entry.
    """

    def read(shard: SparseShard, where: slice) -> None:
        ids = rows.ids[where]
        values[where], states[where] = shard.read(ids)
        if waits is not None and shard.admission is not None:
            has_none = shard.find(ids) < 0
            waits[where] = HAS_ROW
            waits[where][has_none] = shard.admission.waits(ids[has_none].view(np.uint64))

    jobs = []
    for owner, shards, shard in table.blocks:
        where = rows.within(shards)
        if count := where.stop - where.start:
            jobs.append(Job(owner, count, partial(read, shard, where)))
    return jobs


def read_free_rows_jobs(table: SparseTable, free_rows: NDArray[np.int64]) -> list[Job]:
    """Read how many rows each shard here may still get.

    Args:
        table: One with a most number of rows.
        free_rows: [shards here]; filled.
    """

    def read(shard: SparseShard, where: slice, there: slice) -> None:
        if shard.admission is not None:
            free_rows[where] = shard.admission.free_rows()[there]

    first, jobs = table.hosted.start, []
    for owner, shards, shard in table.blocks:
        where = slice(shards.start, shards.stop)
        there = slice(first + shards.start, first + shards.stop)
        jobs.append(Job(owner, 1, partial(read, shard, where, there)))
    return jobs


def read_range_job(
    table: DenseTable,
    where: slice,
    values: NDArray[np.float32],
    states: NDArray[np.float32],
    stepped: list[bool],
) -> Job:
    """Read some of a range's values, and whether its optimizer has stepped.

    Args:
        table: Whose range it is.
        where: Which values of it.
        values: [m]; filled.
        states: [S, m]; filled.
        stepped: Gets one item.
    """

    def read() -> None:
        dense = table.range
        values[:] = dense.values[where]
        states[:] = dense.states[:, where]
        stepped.append(not dense.is_untouched)

    return table.job(read, num_values=where.stop - where.start)


def write_jobs(part: PassPart) -> list[Job]:
    """Return what puts the numbers of a part into its place.

    Of two rows for one id, and of two parts for one place of a range, the later stays.
    """
    table, content, states = part.table, part.content, part.states
    if isinstance(table, DenseTable):
        return [table.job(partial(_put, table, part), num_values=len(content.numbers.rows))]
    assert isinstance(table, SparseTable), "a table is sparse or dense"
    assert isinstance(content, SparsePart), "the request's reader sees to it"
    table.use.push(content.offsets)
    jobs = []
    for owner, shards, shard in table.blocks:
        where = content.within(shards)
        if count := where.stop - where.start:
            numbers = (content.ids[where], content.rows.rows[where], states[where])
            jobs.append(Job(owner, count, partial(_assign, shard, *numbers)))
    if part.came is not None:
        jobs += _count_jobs(table, part.came)
    return jobs


def _assign(
    shard: SparseShard,
    ids: NDArray[np.int64],
    values: NDArray[np.float32],
    states: NDArray[np.float32],
) -> None:
    """Put rows into their places, and count those that are new as admitted."""
    before = shard.num_rows
    shard.assign(ids, values, states)
    if shard.admission is not None:
        shard.admission.num_admitted += shard.num_rows - before


def _count_jobs(table: SparseTable, came: CameIds) -> list[Job]:
    """Return what counts ids that came without a row."""

    def count(shard: SparseShard, where: slice, refused: int) -> None:
        if shard.admission is not None:
            keys = came.ids[where].view(np.uint64)
            shard.admission.note_uses(keys, came.uses[where])
            shard.admission.num_refused += refused

    jobs, refused = [], came.refused
    for owner, shards, shard in table.blocks:
        where = slice(int(came.offsets[shards.start]), int(came.offsets[shards.stop]))
        num = where.stop - where.start
        if num or refused:
            jobs.append(Job(owner, num, partial(count, shard, where, refused)))
        refused = 0  # the first owner counts them
    return jobs


def _put(table: DenseTable, part: PassPart) -> None:
    content = part.content
    assert isinstance(content, DensePart), "the request's reader sees to it"
    table.range.put(content.at, content.values.rows, part.states, stepped=part.stepped)
