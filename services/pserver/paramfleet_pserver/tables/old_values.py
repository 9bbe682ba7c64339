"""What steps of sync have changed, as it was before: for workers that are some steps behind.

A worker that is started again computes a step from the values of before it, and some pservers
may have applied it already. So before a step changes values, its owners put them aside; states
of optimizers aren't read by workers, and aren't kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.parts import DensePart, SparsePart, encode_values
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.tables.encoding import Encoded, WireDtype, encode_rows
from paramfleet_shared.values.ids import Step

__all__ = ["OldRows", "OldVersions", "StepBefore", "pull_old_job", "pull_old_jobs"]


@dataclass(slots=True)
class OldRows:
    """Rows of a block. Its owner fills and reads them.

    They are sorted when they are read, which is seldom: to put them aside is to copy them.
    """

    ids: NDArray[np.int64]
    """As they came; one may occur several times. [n]"""
    values: NDArray[np.float32]
    """[n, D]"""

    def put_into(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Overwrite the values of those ids that are here."""
        if not len(self.ids):
            return
        order = np.argsort(self.ids)
        at = np.searchsorted(self.ids, ids, sorter=order)
        places = order[np.minimum(at, len(order) - 1)]
        found = np.flatnonzero(self.ids[places] == ids)
        values[found] = self.values[places[found]]


@dataclass(slots=True)
class StepBefore:
    """What one step has changed, as it was before."""

    step: Step
    rows: dict[tuple[str, int], OldRows] = field(default_factory=dict)
    """By table and block."""
    ranges: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """By dense table, all values that are held here."""

    @property
    def num_bytes(self) -> int:
        """Return the memory that it takes."""
        rows = sum(each.ids.nbytes + each.values.nbytes for each in self.rows.values())
        return rows + sum(values.nbytes for values in self.ranges.values())

    def keep_jobs(self, table: Table, parts: Sequence[SparsePart | DensePart]) -> list[Job]:
        """Put aside what a step is about to change of a table; to run before its own jobs."""
        if isinstance(table, DenseTable):

            def keep() -> None:
                self.ranges[table.spec.name] = table.range.values.copy()

            return [table.job(keep)]
        assert isinstance(table, SparseTable), "a table is sparse or dense"
        jobs = []
        for index, block in enumerate(table.blocks):
            own = [_ids_in(part, block.shards) for part in parts]
            if count := sum(map(len, own)):
                act = partial(self._keep, (table.spec.name, index), block, own)
                jobs.append(Job(block.owner, count, act))
        return jobs

    def _keep(
        self, key: tuple[str, int], block: Block, own: Sequence[NDArray[np.int64]]
    ) -> None:
        ids = np.concatenate(own)
        values = np.empty((len(ids), block.rows.spec.dim), np.float32)
        block.rows.pull(ids, values, create=False)
        self.rows[key] = OldRows(ids, values)


def _ids_in(part: SparsePart | DensePart, shards: range) -> NDArray[np.int64]:
    assert isinstance(part, SparsePart), "the request's reader sees to it"
    return part.ids[part.within(shards)]


class OldVersions:
    """What the latest steps have changed, as it was before them. Used from one event loop.

    Args:
        most: How many steps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._steps: list[StepBefore] = []

    @property
    def num_bytes(self) -> int:
        """Return the memory that all of it takes."""
        return sum(each.num_bytes for each in self._steps)

    def begin(self, step: Step) -> StepBefore:
        """Return what a step is to be put into; the oldest is let go for it."""
        before = StepBefore(step)
        self._steps = [*self._steps, before][-self._most :]
        return before

    def steps(self) -> list[StepBefore]:
        """Return what is kept, the oldest first."""
        return list(self._steps)

    def restore(self, steps: Sequence[StepBefore]) -> None:
        """Take over what another one kept."""
        self._steps = list(steps)

    def clear(self) -> None:
        """Keep nothing of before now: values were written past the steps."""
        self._steps = []

    def since(self, version: int, begun: int) -> list[StepBefore] | None:
        """Return what takes values back to a version, in the order in which it must be applied.

        Args:
            version: Steps that the values are to have.
            begun: Steps that owners were given.

        Returns:
            None if some of it isn't kept.
        """
        found = {each.step: each for each in self._steps}
        steps = [found.get(Step(step)) for step in range(begun - 1, version - 1, -1)]
        kept = [each for each in steps if each is not None]
        return kept if len(kept) == len(steps) else None


def pull_old_jobs(
    table: SparseTable, part: SparsePart, before: Sequence[StepBefore], *, create: bool
) -> list[Job]:
    """Read rows into ``part.rows`` as they were before steps, the newest of which is first."""
    jobs = []
    for index, block in enumerate(table.blocks):
        where = part.within(block.shards)
        if count := where.stop - where.start:
            key = table.spec.name, index
            act = partial(_pull_old, block, part.part(where), before, key, create=create)
            jobs.append(Job(block.owner, count, act))
    return jobs


def _pull_old(
    block: Block,
    part: SparsePart,
    before: Sequence[StepBefore],
    key: tuple[str, int],
    *,
    create: bool,
) -> None:
    values = np.empty((len(part.ids), block.rows.spec.dim), np.float32)
    block.rows.pull(part.ids, values, create=create)
    for step in before:
        if key in step.rows:
            step.rows[key].put_into(part.ids, values)
    encode_rows(values, part.wire, out=part.rows)


def pull_old_job(
    table: DenseTable, out: Encoded, wire: WireDtype, where: slice, before: Sequence[StepBefore]
) -> Job:
    """Copy some of a range's values to ``out`` as they were before steps."""

    def copy() -> None:
        values = table.range.values
        for step in before:
            values = step.ranges.get(table.spec.name, values)
        encode_values(values[where], wire, out)

    return table.job(copy, num_values=where.stop - where.start)
