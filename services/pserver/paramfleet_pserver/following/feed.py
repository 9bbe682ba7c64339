"""What one reader has yet to read of a group's tables: the ids that changed, and their rows.

A reader gets rows as they are when it asks, so a row that changed often comes once. What was
answered is kept until the next question says that it came; else it is read, and comes, again.

D = width of a row, n = rows of an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.rows.touched import TouchedIds
from paramfleet_shared.tables.sparse import SparseShard

if TYPE_CHECKING:
    from paramfleet_shared.tables.rows.scanning import RowScan

__all__ = ["MOST_BYTES", "DenseValues", "Feed", "TableChanges"]

MOST_BYTES = 4 << 20
"""Of rows in one answer, about: a few milliseconds of an owner."""

MOST_DENSE = 1 << 23
"""Values of dense tables in one answer: 32 MiB, of the 256 that a message may have."""

_VALUES_AT_ONCE = 1 << 22
"""Of a dense table: some milliseconds of its owner. Those of one step, where they are all."""


_NO_VALUES = np.empty(0, np.float32)


class TableChanges(NamedTuple):
    """What changed of a table."""

    table: str
    ids: NDArray[np.int64]
    """Of rows that there are. [n]"""
    rows: NDArray[np.float32]
    """[n, D]"""
    removed: NDArray[np.int64]
    """Ids that have no row now."""


class DenseValues(NamedTuple):
    """The values of a dense table that are here."""

    table: str
    mark: int
    """Of the values: who knows it needs them no more until there are others."""
    start: int
    """Place of the first one in the table."""
    values: NDArray[np.float32]
    """[m]"""
    left: int
    """How many of the table's are to be asked for, behind these."""


class _BlockFeed:
    """What is to be read of one block. Its owner's thread uses all but ``touched``'s facts.

    Args:
        block: Which.
        touched: Gets the ids that change.
    """

    def __init__(self, block: Block, touched: TouchedIds) -> None:
        self.block = block
        self.touched = touched
        self._answered: NDArray[np.int64] = np.empty(0, np.int64)
        self.scan: RowScan | None = None
        """What goes through the rows that there were when it began."""

    def begin(self) -> None:
        self.block.rows.follow(self.touched)
        self.scan = self.block.rows.scan()

    def end(self) -> None:
        self.block.rows.unfollow(self.touched)
        self.end_scan()

    def scanned(
        self, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """Return the rows of some places, and how many places there are."""
        if self.scan is None:
            self.scan = self.block.rows.scan()
        return *self.scan.read(start, count), self.scan.num_places

    def end_scan(self) -> None:
        if self.scan is not None:
            self.scan.end()
            self.scan = None

    def read(self, most: int, *, begins: bool, again: bool) -> tuple[TableChanges, int]:
        """Return what changed of at most so many ids, and of how many there is more.

        Args:
            most: How many.
            begins: Whether all that changed until now is meant from here on.
            again: Whether what was answered last didn't come.
        """
        self.end_scan()  # who asks what changed has all rows
        if again:
            self.touched.note(self._answered)
        if begins or again:
            self.touched.settle()
        rows = self.block.rows
        ids = self._answered = self.touched.take(most)
        has_row = rows.find(ids) >= 0
        there = np.ascontiguousarray(ids[has_row])
        values = np.empty((len(there), rows.spec.dim), np.float32)
        rows.pull(there, values, create=False)
        changes = TableChanges(rows.spec.name, there, values, ids[~has_row])
        return changes, self.touched.num_settled


class Feed:
    """One reader's. Used from one event loop.

    Args:
        number: A random number, by which the reader names it.
        store: The tables.
        owners: Who works on them.
        now: The clock's time.
    """

    def __init__(self, number: int, store: TableStore, owners: Owners, *, now: float) -> None:
        self.number = number
        self.asked_at = now
        """When the reader asked last."""
        self.answers = 0
        """How often it was answered what changed: the number of the last answer."""
        self._store = store
        self._owners = owners
        self.tables: Sequence[Table] = tuple(store)
        """What is followed."""
        self._parts = {table.spec.name: _parts_of(table) for table in self.tables}
        self._by_block = {
            (table.spec.name, index): _BlockFeed(block, store.readers.touched())
            for table in self.tables
            if isinstance(table, SparseTable)
            for index, block in enumerate(table.blocks)
        }
        self._feeds = list(self._by_block.values())

    def hindrance(self) -> str:
        """Return why it can't be gone on with; empty if it can."""
        if self.is_lost:
            return "what changed since took more memory than the pserver has for readers"
        if {table.spec.name for table in self._store} != self._parts.keys():
            return "there are other tables now"
        for name, parts in self._parts.items():
            if parts != _parts_of(self._store.find(name)):
                return f"table {name} was loaded again"
        return ""

    @property
    def is_lost(self) -> bool:
        """Whether what changed could not be kept."""
        return any(each.touched.is_lost for each in self._feeds)

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is kept."""
        return sum(each.touched.num_bytes for each in self._feeds)

    async def begin(self) -> None:
        """Note what changes from now on."""
        await self._owners.run(
            [
                Job(each.block.owner, each.block.rows.image_work, each.begin)
                for each in self._feeds
            ]
        )

    async def end(self) -> None:
        """Note nothing any more."""
        for each in self._feeds:
            self._store.readers.end(each.touched)
        await self._owners.run([Job(each.block.owner, 0, each.end) for each in self._feeds])

    async def rows(
        self, table: SparseTable, block: int, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int, int]:
        """Return ids int64 [n] and rows float32 [n, D] of some places of a block, as they are.

        Args:
            table: Whose.
            block: Which of its blocks.
            start: The first place.
            count: How many places, fewer where they end, or where rows are long.

        Returns:
            Beside them the place behind the last one that was looked at, and how many there
            are.
        """
        feed = self._by_block[table.spec.name, block]
        count = min(count, max(1, MOST_BYTES // (8 + 4 * table.spec.dim)))
        found: list[tuple[NDArray[np.int64], NDArray[np.float32], int]] = []

        def read() -> None:
            found.append(feed.scanned(start, count))

        owner, work = feed.block.owner, feed.block.work(count)
        await self._owners.run([Job(owner, work, read)])
        ids, rows, num_places = found[0]
        return ids, rows, start + count, num_places

    async def changes(self, *, have: int, begins: bool) -> tuple[list[TableChanges], int]:
        """Return what changed of each block, and of how many ids there is more.

        Cancellation: what was read comes again, since nobody can have this answer.

        Args:
            have: The last answer that came; another one than the last means that that didn't.
            begins: Whether all that changed until now is asked for, in this answer and those
                that follow it; else the rest of what was.
        """
        again, found, num_left = have != self.answers, list[TableChanges](), 0
        self.answers += 1  # before the first owner gives ids away
        free = MOST_BYTES
        for each in self._feeds:
            row_bytes = 8 + 4 * each.block.rows.spec.dim
            most = max(0 if found else 1, free // row_bytes)
            read = partial(each.read, most, begins=begins, again=again)
            changes, left = await self._read(each, most, read)
            if len(changes.ids) or len(changes.removed):
                found.append(changes)
            free -= len(changes.ids) * row_bytes + len(changes.removed) * 8
            num_left += left
        return found, num_left

    async def dense(
        self,
        marks: Mapping[str, int],
        places: Mapping[str, tuple[int, int]],
        *,
        most: int | None,
    ) -> list[DenseValues]:
        """Return the values of dense tables that have changed, some at a time.

        Args:
            marks: Of those that the reader has, by table.
            places: Of tables of which it has the first ones: the mark of these, and the place
                of the next one.
            most: How many values; None for all.
        """
        found, free = list[DenseValues](), most
        for table in self.tables:
            if not isinstance(table, DenseTable):
                continue
            name, mark, place = table.spec.name, table.range.num_changes, table.start
            if name in places:
                mark, place = places[name]
            elif mark == marks.get(name):
                continue
            left = table.start + table.num_rows - place
            num = left if free is None else min(left, free)
            if num or not left:
                values = await self._values(table, place - table.start, num)
                # The mark is older than the values, at most.
                found.append(DenseValues(name, mark, place, values, left - num))
                free = None if free is None else free - num
            elif left:
                found.append(DenseValues(name, mark, place, _NO_VALUES, left))
        return found

    async def _values(self, table: DenseTable, start: int, num: int) -> NDArray[np.float32]:
        values = np.empty(num, np.float32)
        for at in range(0, num, _VALUES_AT_ONCE):
            stop = min(at + _VALUES_AT_ONCE, num)

            def copy(at: int = at, stop: int = stop) -> None:
                values[at:stop] = table.range.values[start + at : start + stop]

            await self._owners.run([table.job(copy, num_values=stop - at)])
        return values

    async def _read(
        self, feed: _BlockFeed, most: int, read: Callable[[], tuple[TableChanges, int]]
    ) -> tuple[TableChanges, int]:
        found: list[tuple[TableChanges, int]] = []
        work = feed.block.work(most)
        await self._owners.run([Job(feed.block.owner, work, lambda: found.append(read()))])
        return found[0]


def _parts_of(table: Table) -> list[SparseShard | DenseRange]:
    """Return what holds a table's numbers: other objects after a load."""
    if isinstance(table, SparseTable):
        return [block.rows for block in table.blocks]
    assert isinstance(table, DenseTable), "there is no other kind"
    return [table.range]
