"""The tables of this server: its shards of each, and who owns them.

Nothing here waits: a table says which jobs an operation takes, one for each owner, and
the caller hands them over.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_pserver.core.pulled import PulledIds
from paramfleet_pserver.known import KnownIds
from paramfleet_pserver.owners import Job
from paramfleet_shared.placement import range_of_shard
from paramfleet_shared.served_errors import UnknownTableError
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.encoding import Encoded, WireDtype, decode_rows, encode_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableMismatchError, TableSpec

__all__ = [
    "DensePart",
    "DenseTable",
    "SparsePart",
    "SparseTable",
    "Table",
    "TableStore",
]

VALUES_PER_ROW = 64
"""Dense values that cost about as much as one sparse row: what a cache miss streams."""
CODED_VALUES = 1 << 15
"""Floats that are read and then encoded at a time: they stay near."""
DIRECT: tuple[WireDtype, ...] = ("float32", "bfloat16")
"""How rows travel that a table takes and gives itself."""


class SparsePart(NamedTuple):
    """One worker's rows of a sparse table."""

    ids: NDArray[np.int64]
    """Sorted by shard. [n]"""
    offsets: NDArray[np.int64]
    """Bounds of this server's shards in ``ids``. [shards + 1]"""
    rows: Encoded
    """[n, D], as they travel."""
    wire: WireDtype = "float32"
    """How they do."""
    scale: float = 1.0
    """What the rows are multiplied by."""
    unique: bool = False
    """Whether the worker promises that the ids differ."""

    @property
    def numbers(self) -> Encoded:
        """Return the numbers, whatever the kind of table."""
        return self.rows

    def within(self, shards: range) -> slice:
        """Return where the rows of neighbouring shards lie."""
        return slice(int(self.offsets[shards.start]), int(self.offsets[shards.stop]))

    def part(self, where: slice) -> "SparsePart":
        """Return some of the rows, as views."""
        return self._replace(ids=self.ids[where], rows=self.rows.part(where))


class DensePart(NamedTuple):
    """One worker's numbers for this server's range of a dense table."""

    values: Encoded
    """[length of the range], as they travel."""
    wire: WireDtype = "float32"
    """How they do."""
    scale: float = 1.0
    """What the values are multiplied by."""

    @property
    def numbers(self) -> Encoded:
        """Return the numbers, whatever the kind of table."""
        return self.values


class Table(ABC):
    """What sparse and dense tables have in common.

    Args:
        spec: The table.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.version = 0
        """Pushes (sync: steps) applied in this job."""
        self.num_updates = 0
        """Pushes or steps begun in all, those before a checkpoint included."""
        self.num_pulls = 0
        self.num_pushes = 0
        self.is_loaded = False
        """Whether the rows came from a checkpoint."""
        self.is_assigned = False
        """Whether a worker gave the values."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Return the rows (dense: values) that this server holds."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Return the memory they take."""

    @abstractmethod
    def update_jobs(
        self, parts: "Sequence[SparsePart | DensePart]", *, lr: float, step: int
    ) -> list[Job]:
        """Apply one update made of workers' parts, in this order.

        Args:
            parts: Of the table's kind; at least one.
            lr: Learning rate.
            step: The update's number, from 1.
        """

    def adopt(self, other: "Table") -> None:
        """Take the rows and the age of a table of the same spec, as after a load."""
        self.num_updates = other.num_updates
        self.is_loaded = other.is_loaded

    def next_update(self) -> int:
        """Count an update, and return its number from 1."""
        self.num_updates += 1
        return self.num_updates

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "pulls": self.num_pulls,
            "pushes": self.num_pushes,
            "version": self.version,
        }


class Block(NamedTuple):
    """Neighbouring shards with one owner, and their rows in one place.

    A request is sorted by shard, so that a block's part of it is one slice and one call.
    """

    owner: int
    shards: range
    """Counted from this server's first."""
    rows: SparseShard


class SparseTable(Table):
    """This server's shards of a sparse table.

    Args:
        spec: The table.
        shards: For each owner the shards it owns, counted from this server's first.
    """

    def __init__(self, spec: TableSpec, shards: Sequence[range]) -> None:
        super().__init__(spec)
        self.pulled = PulledIds(spec.name)
        self.known = KnownIds(spec.name)
        self.blocks = tuple(
            Block(owner, own, SparseShard(spec)) for owner, own in enumerate(shards)
        )

    @property
    @override
    def num_rows(self) -> int:
        return sum(block.rows.num_rows for block in self.blocks)

    @property
    @override
    def num_bytes(self) -> int:
        return sum(block.rows.num_bytes for block in self.blocks)

    @override
    def adopt(self, other: Table) -> None:
        super().adopt(other)
        assert isinstance(other, SparseTable), "of one spec"
        self.blocks = other.blocks

    def pull_jobs(self, part: SparsePart, *, create: bool) -> list[Job]:
        """Read rows into ``part.rows``, as they are to travel.

        With ``create``, unknown ids become rows.
        """
        jobs = []
        for owner, shards, rows in self.blocks:
            where = part.within(shards)
            if count := where.stop - where.start:
                read = partial(_pull_rows, rows, part.part(where), create=create)
                jobs.append(Job(owner, count, read))
        return jobs

    @override
    def update_jobs(
        self, parts: Sequence[SparsePart | DensePart], *, lr: float, step: int
    ) -> list[Job]:
        self.num_pushes += len(parts)
        jobs = []
        for owner, shards, rows in self.blocks:
            mine = []
            for part in parts:
                assert isinstance(part, SparsePart), "the request's reader sees to it"
                where = part.within(shards)
                if where.stop > where.start:
                    mine.append(part.part(where))
            if mine:
                count = sum(len(part.ids) for part in mine)
                jobs.append(Job(owner, count, partial(_push_rows, rows, mine, lr, step)))
        return jobs


class DenseTable(Table):
    """This server's range of a dense table.

    Args:
        spec: The table.
        start: First value of the range.
        stop: End of the range.
        owner: Its owner.
    """

    def __init__(self, spec: TableSpec, start: int, stop: int, *, owner: int) -> None:
        super().__init__(spec)
        self.start = start
        self.stop = stop
        self.owner = owner
        self.range = DenseRange(spec, start, stop)

    @property
    @override
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    @override
    def num_bytes(self) -> int:
        return self.range.num_bytes

    def pull_job(self, out: Encoded, wire: WireDtype) -> Job:
        """Copy the range's values to ``out``, as they are to travel."""

        def copy() -> None:
            encode_rows(self.range.values, wire, out=out)

        return self.job(copy)

    @override
    def update_jobs(
        self, parts: Sequence[SparsePart | DensePart], *, lr: float, step: int
    ) -> list[Job]:
        self.num_pushes += len(parts)
        dense = [part for part in parts if isinstance(part, DensePart)]
        return [self.job(partial(_push_values, self.range, dense, lr, step))]

    def assign_job(self, values: NDArray[np.float32]) -> Job:
        """Overwrite the range's values."""
        return self.job(partial(self.range.assign, values))

    def job(self, act: Callable[[], None]) -> Job:
        """Return work on the range, for its owner."""
        return Job(self.owner, self.num_rows // VALUES_PER_ROW, act)

    @override
    def adopt(self, other: Table) -> None:
        super().adopt(other)
        assert isinstance(other, DenseTable), "their specs are the same"
        self.range = other.range


class TableStore:
    """All tables by name, and the shards of this server.

    Args:
        shards: The shards this server hosts, of every table.
        num_shards: Shards of every table of the job.
        num_owners: Owner threads; each owns a block of the shards.
    """

    def __init__(self, *, shards: range, num_shards: int, num_owners: int) -> None:
        self.shards = shards
        self.num_shards = num_shards
        num_owners = min(num_owners, len(shards))
        self._owned = [
            range(i * len(shards) // num_owners, (i + 1) * len(shards) // num_owners)
            for i in range(num_owners)
        ]
        self._tables: dict[str, Table] = {}

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def find(self, name: str) -> Table:
        """Return a table.

        Raises:
            UnknownTableError: if there is none of that name.
        """
        table = self._tables.get(name)
        if table is None:
            raise UnknownTableError(table=name)
        return table

    def check(self, specs: Iterable[TableSpec]) -> list[TableSpec]:
        """Compare specs with the tables there are, and change nothing.

        Returns:
            Those that are new.

        Raises:
            TableMismatchError: if one differs from the table of its name, or from
                the job in the number of shards.
        """
        new: dict[str, TableSpec] = {}
        for spec in specs:
            if spec.num_shards != self.num_shards:
                raise TableMismatchError(
                    table=spec.name,
                    field="num_shards",
                    have=self.num_shards,
                    got=spec.num_shards,
                )
            known = new.get(spec.name)
            if spec.name in self._tables:
                known = self._tables[spec.name].spec
            if known is not None:
                known.check_same(spec)
            else:
                new[spec.name] = spec
        return list(new.values())

    def build(self, spec: TableSpec) -> SparseTable | DenseTable:
        """Return a new table with this server's shards, not yet in the store."""
        if spec.kind == "sparse":
            return SparseTable(spec, self._owned)
        start, _ = range_of_shard(spec.size, self.num_shards, self.shards.start)
        _, stop = range_of_shard(spec.size, self.num_shards, self.shards.stop - 1)
        return DenseTable(spec, start, stop, owner=len(self._tables) % len(self._owned))

    def put(self, tables: Iterable[Table]) -> None:
        """Add tables; one of a name that is there gives its rows to the one there."""
        for table in tables:
            there = self._tables.setdefault(table.spec.name, table)
            if there is not table:
                there.adopt(table)


def _pull_rows(block: SparseShard, part: SparsePart, *, create: bool) -> None:
    if part.wire in DIRECT:
        block.pull(part.ids, part.rows.rows, create=create)
        return
    step = max(1, CODED_VALUES // block.spec.dim)
    room = np.empty((min(step, len(part.ids)), block.spec.dim), np.float32)
    for start in range(0, len(part.ids), step):
        some = part.part(slice(start, start + step))
        rows = room[: len(some.ids)]
        block.pull(some.ids, rows, create=create)
        encode_rows(rows, part.wire, out=some.rows)


def _push_rows(block: SparseShard, parts: list[SparsePart], lr: float, step: int) -> None:
    if len(parts) > 1:
        ids = np.concatenate([part.ids for part in parts])
        rows = np.concatenate([_numbers(part) for part in parts])
        block.push(ids, rows, lr=lr, step=step)
        return
    part = parts[0]
    direct = part.unique and part.scale == 1.0 and part.wire in DIRECT
    rows = part.rows.rows if direct else _numbers(part)
    block.push(part.ids, rows, lr=lr, step=step, unique=part.unique)


def _push_values(dense: DenseRange, parts: Sequence[DensePart], lr: float, step: int) -> None:
    total = _numbers(parts[0])
    for part in parts[1:]:
        total = total + _numbers(part)
    dense.push(total, lr=lr, step=step)


def _numbers(part: SparsePart | DensePart) -> NDArray[np.float32]:
    """Return a part's numbers as float32, scaled."""
    values = decode_rows(part.numbers, part.wire)
    return values if part.scale == 1.0 else values * np.float32(part.scale)
