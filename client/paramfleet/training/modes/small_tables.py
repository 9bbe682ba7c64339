"""Small tables of sync: their rows come with every step, and no forward asks for them.

Rows of the step in progress change for nobody before it is whole. So those that came with the
step before are what a pull would answer, until this worker takes its next step. A batch to come
isn't known then, but all ids of the batches so far are: where these stay few, the answer of a
step holds the rows of all of them. A forward that looks up none but these needs no request.
The ids travel once: from then on the pservers keep them, and a step names their pull.

Sans-io, and used from the training thread.

Shape legend: U = unique ids of a lookup, K = known ids of a table, D = row width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.prefetching.ahead import Found, Wanted
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import SlotIndex

__all__ = ["MAX_BYTES", "SmallTables"]

MAX_BYTES = 64 << 10
"""What all ids and rows together may take in a step: less time than one more request does."""

_TABLE_BYTES = 256
"""What a table counts for beside its rows: its names, bounds and lengths."""


class _Known:
    """The ids of one table that batches had, and their rows if they have come."""

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        self.row_bytes = 8 + 4 * table.dim
        self._index = SlotIndex(max_rows=MAX_BYTES // self.row_bytes, table=table.name)
        self.rows: NDArray[np.float32] | None = None
        """float32 [K, D], in the order in which the ids came."""

    def num_new(self, ids_U: NDArray[np.int64]) -> int:
        """Return how many of these aren't known."""
        return int(np.count_nonzero(self._index.find(ids_U, create=False) < 0))

    def add(self, ids_U: NDArray[np.int64]) -> None:
        """Know these, too; the rows that have come are no longer all."""
        self._index.find(ids_U, create=True)
        self.rows = None

    def take(self, ids_U: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return copies of the rows of ids [U, D]; None if one isn't here."""
        if self.rows is None:
            return None
        slots = self._index.find(ids_U, create=False)
        return None if (slots < 0).any() else self.rows.take(slots, axis=0)

    def read(self, num_shards: int, *, keep: int) -> Read:
        """Return what asks for the rows; none are made by it, since training has made them.

        Args:
            num_shards: Of the table.
            keep: By which number the pservers keep the ids.
        """
        parted = partition(self._index.ids(), num_shards)
        order = np.empty_like(parted.inverse)
        order[parted.inverse] = np.arange(len(order))
        rows = RowIds(parted.ids, parted.offsets)
        return Read(
            table=self.table.name, rows=rows, dim=self.table.dim, order=order, keep=keep
        )


class SmallTables:
    """The rows that come with a step.

    Args:
        dense: What every step reads beside them.
        placement: Who hosts what.
        max_bytes: What they may take; 0 for none. Once they would take more, none come any
            more: a forward would have to ask for others anyway.
        numbers: Of this worker's pulls: the same that its forwards take theirs from, since the
            pservers keep ids by number.
    """

    def __init__(
        self,
        dense: ReadPlan,
        placement: Placement,
        *,
        max_bytes: int = MAX_BYTES,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._dense = dense
        self._numbers = count() if numbers is None else numbers
        self._placement = placement
        self._left_bytes = max_bytes
        self._known: dict[str, _Known] = {}
        self._plan: ReadPlan | None = dense
        self._answers: list[Message] = []
        self._step = -1

    def learn(self, wanted: Sequence[Wanted]) -> None:
        """Have the rows that a forward trains come with the steps from now on."""
        for table, rows, create in wanted:
            if not create or self._left_bytes <= 0:
                continue
            known = self._known.get(table.name)
            if known is None:
                known = self._known[table.name] = _Known(table)
                self._left_bytes -= _TABLE_BYTES
                self._plan = None
            num_new = known.num_new(rows.ids)
            self._left_bytes -= num_new * known.row_bytes
            if self._left_bytes <= 0:
                self._known.clear()
                self._plan = self._dense
            elif num_new:
                known.add(rows.ids)
                self._plan = None

    def covers(self, wanted: Sequence[Wanted]) -> bool:
        """Return whether ``plan`` asks for all these rows."""
        return all(
            (known := self._known.get(table.name)) is not None and not known.num_new(rows.ids)
            for table, rows, _ in wanted
        )

    @property
    def plan(self) -> ReadPlan:
        """Return what a step reads, dense tables first.

        It is the same until something is learnt, but that the ids don't travel again.
        """
        if self._plan is None:
            shards, keep = self._placement.num_shards, next(self._numbers)
            rows = [known.read(shards, keep=keep) for known in self._known.values()]
            self._plan = ReadPlan([*self._dense.reads, *rows], self._placement)
        return self._plan

    def note_gone(self) -> None:
        """Note that a pserver doesn't keep the ids: they travel with the next step."""
        if self._known:
            self._plan = None

    def arrived(
        self, found: Sequence[NDArray[np.float32]], answers: list[Message], *, step: int
    ) -> None:
        """Note the rows that ``plan`` asked for beside the dense tables.

        Args:
            found: float32 [K, D] of each table.
            answers: That they came in.
            step: How many steps are in them.
        """
        for known, rows in zip(self._known.values(), found, strict=True):
            known.rows = rows
        self._name_ids()
        # Not their tensors: a body that holds dense values as well would stay until the next.
        self._answers = [Message(fields=answer.fields) for answer in answers]
        self._step = step

    def take(self, wanted: Sequence[Wanted], *, step: int) -> Found | None:
        """Return rows; None if some of them aren't here, or they are of another step."""
        if step != self._step:
            return None
        found = []
        for table, rows, _ in wanted:
            known = self._known.get(table.name)
            taken = None if known is None else known.take(rows.ids)
            if taken is None:
                return None
            found.append(taken)
        return found, self._answers

    def forget(self) -> None:
        """Drop the rows: they are of before."""
        self._step = -1

    def _name_ids(self) -> None:
        """Let the ids stay here from now on: every pserver has answered, and keeps them."""
        plan = self._plan
        if plan is None or all(read.keep is None for read in plan.reads):
            return
        named = [
            read
            if read.keep is None
            else replace(read, keep=None, as_pulled=(read.table, read.keep))
            for read in plan.reads
        ]
        self._plan = ReadPlan(named, self._placement)
