"""The tables of this server, by name."""

from collections.abc import Callable, Iterable, Iterator

from paramfleet_pserver.core.limits import (
    TableLimits,
    check_bytes,
    check_tables,
    is_for_readers,
)
from paramfleet_pserver.tables.blocks import NewShard, in_memory, make_blocks
from paramfleet_pserver.tables.reader_memory import ReaderMemory
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.discovery.placement import range_of_shard
from paramfleet_shared.errors.served import UnknownTableError
from paramfleet_shared.errors.tables import TableMemoryError, TierModeError
from paramfleet_shared.system.memory import machine_memory
from paramfleet_shared.tables.spec import TableMismatchError, TableSpec
from paramfleet_shared.values.amounts import Memory
from paramfleet_shared.values.ids import Rank

__all__ = ["TableStore"]

DEFAULT_LIMITS = TableLimits()


class TableStore:
    """All tables by name, and the shards of this server.

    Args:
        shards: The shards this server hosts, of every table.
        num_shards: Shards of every table of the job.
        num_owners: Owners, each of a block of the shards; of a training that is restored, as
            many as it had.
        limits: What tables are taken.
        memory: Returns what memory there is; any thread may ask.
        new_shard: Where the rows of sparse tables are.
    """

    def __init__(
        self,
        *,
        shards: range,
        num_shards: int,
        num_owners: int,
        limits: TableLimits = DEFAULT_LIMITS,
        memory: Callable[[], Memory] = machine_memory,
        new_shard: NewShard = in_memory,
    ) -> None:
        self._limits = limits
        self._new_shard = new_shard
        self._memory = memory
        self.shards = shards
        self.num_shards = num_shards
        self._owned = _divided(len(shards), min(num_owners, len(shards)))
        self._tables: dict[str, Table] = {}
        self.readers = ReaderMemory(self._has_memory_for_readers)
        """What is kept for those that follow the tables."""

    def __iter__(self) -> Iterator[Table]:
        return iter(tuple(self._tables.values()))  # others may come between two of them

    @property
    def num_owners(self) -> int:
        """Return how many owners share a table's shards."""
        return len(self._owned)

    def divide(self, num_owners: int) -> None:
        """Have as many owners share the shards of tables, none of which is there yet.

        Args:
            num_owners: At most as many as this server has shards.
        """
        assert not self._tables, "their rows are in blocks already"
        self._owned = _divided(len(self.shards), num_owners)

    def forget(self, rank: Rank) -> None:
        """Keep no ids of a worker's pulls any more."""
        for table in self:
            if isinstance(table, SparseTable):
                table.pulled.forget(rank)
                table.known.forget(rank)

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

    def check_limits(self, specs: Iterable[TableSpec], *, anew: bool = False) -> None:
        """Refuse new tables that this server can't hold, and change nothing.

        Args:
            specs: The tables, each of another name.
            anew: Whether those of a name that is there are built a second time.

        Raises:
            TableLimitError: if there are too many, or one is too wide.
            TableMemoryError: if there is no memory for them, with the arithmetic.
            TierRowError: if rows of one may be on disk, and are too wide for it.
        """
        known = self._tables.keys()
        new = [spec for spec in specs if anew or spec.name not in known]
        check_tables(
            [(spec, self._num_values(spec)) for spec in new],
            num_tables=len(known - {spec.name for spec in new}),
            limits=self._limits,
            memory=self._memory(),
        )
        for spec in new:
            if spec.kind == "sparse":
                self._new_shard.check(spec)

    def note_declared(self) -> None:
        """Let settings that name a table be compared with those of a worker's job."""
        sparse = [table.spec.name for table in self if isinstance(table, SparseTable)]
        self._new_shard.note_tables(sparse)

    def check_mode(self, mode: str) -> None:
        """Refuse a mode whose rows must keep their places, where some of them go to disk.

        Raises:
            TierModeError: if it is such a mode.
        """
        if mode == "geo" and self._new_shard is not in_memory:
            raise TierModeError(mode=mode)

    def check_memory(self, table: str, arithmetic: str, num_bytes: int) -> None:
        """Refuse bytes that there is no memory for; any thread may ask.

        Readers lose what is kept for them before anything is refused.

        Raises:
            TableMemoryError: with the arithmetic.
        """
        try:
            self._check_bytes(table, arithmetic, num_bytes)
        except TableMemoryError:
            if not self.readers.give_up():
                raise
            self._check_bytes(table, arithmetic, num_bytes)

    def has_memory(self, table: str, num_bytes: int) -> bool:
        """Return whether there is memory for a copy of so many bytes of a table."""
        try:
            self._check_bytes(table, f"a copy of {num_bytes:,} bytes", num_bytes)
        except TableMemoryError:
            return False
        return True

    def _check_bytes(self, table: str, arithmetic: str, num_bytes: int) -> None:
        """Refuse bytes that there is no memory for.

        Raises:
            TableMemoryError: with the arithmetic.
        """
        check_bytes(table, arithmetic, num_bytes, limits=self._limits, memory=self._memory())

    def _has_memory_for_readers(self, num_bytes: int) -> bool:
        return is_for_readers(num_bytes, limits=self._limits, memory=self._memory())

    def build(self, spec: TableSpec) -> SparseTable | DenseTable:
        """Return a new table with this server's shards, not yet in the store.

        All memory of a dense one is written to: build it on a thread that nobody waits for.
        """
        if spec.kind == "sparse":
            owned = self._owned
            blocks = make_blocks(spec, owned, self.check_memory, self._new_shard)
            return SparseTable(spec, self.shards, blocks)
        return DenseTable(spec, self.shards, owner=len(self._tables) % len(self._owned))

    def _num_values(self, spec: TableSpec) -> int:
        """Return how many values of a dense table this server holds."""
        first, last = self.shards.start, self.shards.stop - 1
        start, _ = range_of_shard(spec.size, self.num_shards, first)
        _, stop = range_of_shard(spec.size, self.num_shards, last)
        return stop - start

    def replace(self, tables: Iterable[Table]) -> None:
        """Put tables into the place of those of their names, which nobody uses as yet."""
        self._tables.update({table.spec.name: table for table in tables})

    def put(self, tables: Iterable[Table]) -> None:
        """Add tables; one of a name that is there gives its rows to the one there."""
        for table in tables:
            there = self._tables.setdefault(table.spec.name, table)
            if there is not table:
                there.adopt(table)


def _divided(num_shards: int, num_owners: int) -> list[range]:
    """Return the shards of each owner, counted from this server's first."""
    return [
        range(i * num_shards // num_owners, (i + 1) * num_shards // num_owners)
        for i in range(num_owners)
    ]
