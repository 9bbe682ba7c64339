"""What tables a pserver takes: judged by figures, before anything is allocated."""

from collections.abc import Iterable
from dataclasses import dataclass

from paramfleet_shared.errors.tables import TableLimitError, TableMemoryError
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.amounts import Memory

__all__ = ["TableLimits", "check_bytes", "check_tables", "dense_bytes", "is_for_readers"]

_FLOAT_BYTES = 4

_READERS_PART = 32
"""Of the memory: readers leave one such part free beside what the tables leave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLimits:
    """The most that one pserver takes; each is a setting of it."""

    max_tables: int = 1024
    """Tables of a job."""
    max_dim: int = 65_536
    """Values of a row."""
    memory_share: float = 0.9
    """Of the machine's memory, that may be in use by whatever there is."""


def check_tables(
    new: Iterable[tuple[TableSpec, int]],
    *,
    num_tables: int,
    limits: TableLimits,
    memory: Memory,
) -> None:
    """Refuse tables that this server can't hold.

    Args:
        new: The tables, each with the values of it that this server would hold if it is
            dense; a sparse one takes memory only as rows come.
        num_tables: Tables there are.
        limits: The server's.
        memory: The machine's.

    Raises:
        TableLimitError: if there are too many tables, or one is too wide.
        TableMemoryError: if dense ones, together, take more memory than is free.
    """
    before = 0
    for number, (spec, num_values) in enumerate(new, start=num_tables + 1):
        for setting, what, value, most in (
            ("max_tables", "the number of tables", number, limits.max_tables),
            ("max_dim", "dim", spec.dim, limits.max_dim),
        ):
            if value > most:
                raise TableLimitError(
                    table=spec.name, what=what, value=value, setting=setting, limit=most
                )
        if spec.kind == "dense":
            arithmetic, num_bytes = dense_bytes(spec, num_values)
            if before:
                arithmetic += f", and {before:,} bytes of the tables before it"
            before += num_bytes
            check_bytes(spec.name, arithmetic, before, limits=limits, memory=memory)


def dense_bytes(spec: TableSpec, num_values: int) -> tuple[str, int]:
    """Return how many bytes some values of a dense table take, and how that is computed."""
    state = _FLOAT_BYTES * spec.optimizer.num_state_columns
    per_value = f"{_FLOAT_BYTES} bytes"
    if state:
        per_value = f"({_FLOAT_BYTES} value + {state} {spec.optimizer.rule} state) bytes"
    return f"{num_values:,} values x {per_value}", num_values * (_FLOAT_BYTES + state)


def check_bytes(
    table: str, arithmetic: str, num_bytes: int, *, limits: TableLimits, memory: Memory
) -> None:
    """Refuse what would leave less memory free than is kept back.

    Raises:
        TableMemoryError: with the arithmetic.
    """
    kept = round(memory.total * (1.0 - limits.memory_share))
    if num_bytes > memory.free - kept:
        raise TableMemoryError(
            table=table,
            arithmetic=arithmetic,
            num_bytes=num_bytes,
            free=memory.free,
            total=memory.total,
            kept=kept,
        )


def is_for_readers(num_bytes: int, *, limits: TableLimits, memory: Memory) -> bool:
    """Return whether ids that readers have yet to read may take so many bytes more.

    They end before the tables do: a reader can begin anew, and what trains can't.
    """
    kept = round(memory.total * (1.0 - limits.memory_share)) + memory.total // _READERS_PART
    return num_bytes <= memory.free - kept
