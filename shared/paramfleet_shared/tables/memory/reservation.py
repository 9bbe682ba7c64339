"""Address space that becomes memory when it is touched.

A table's arrays never move and never stop to grow: each is one private anonymous
mapping as long as the table may ever be, and the system gives it pages at first touch,
zero-filled.

How long: by default ``DEFAULT_MAX_ROWS`` rows a shard, or as many as 64 GiB or four
times this machine's memory hold, whichever is less. A process of 8 shards and 10 tables
then reserves at most 6 TiB of the 128 TiB that a 64-bit process may address. On Linux
the mapping asks for no commit (``MAP_NORESERVE``), which ``vm.overcommit_memory = 2``
doesn't honour; macOS commits lazily anyway.
"""

import mmap
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paramfleet_shared.errors import ContractError

__all__ = [
    "SMALL_BYTES",
    "CapacityError",
    "ReservationError",
    "RowColumn",
    "default_max_rows",
    "reserve",
]

DEFAULT_MAX_ROWS = 1 << 28
"""Rows a shard may hold by default."""

MAX_RESERVATION_BYTES = 64 << 30
"""Of one column of one shard, by default."""

SMALL_BYTES = 16 << 20
"""A column's beginning that keeps small pages, so that small tables stay small."""

_LINUX_MAP_NORESERVE = 0x4000


class CapacityError(ContractError):
    """A shard has no room for the rows a call would create; nothing was changed.

    Only ids crafted to share one page of the index can raise it with rows left; then
    ids before the one that found no place have been created.
    """

    code = "contract.capacity"
    table: str
    shard: int
    rows: int
    max_rows: int
    sentence = (
        "table {table!r}, shard {shard}: new rows don't fit beside its {rows} rows, at most "
        "{max_rows}: use more pservers"
    )


class ReservationError(ContractError):
    """The system refuses the address space of a table."""

    code = "contract.reservation"
    num_bytes: int
    reason: str
    sentence = (
        "can't reserve {num_bytes} bytes of address space ({reason}): lower max_rows, "
        "or lift the limit (ulimit -v; sysctl vm.overcommit_memory = 0 or 1)"
    )


def default_max_rows(row_bytes: int) -> int:
    """Return how many rows of ``row_bytes`` a shard may hold by default."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(DEFAULT_MAX_ROWS, min(MAX_RESERVATION_BYTES, 4 * physical) // row_bytes)


def reserve(num: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return ``num`` zeros that take memory only where they are touched.

    Raises:
        ReservationError: if the system refuses.
    """
    num_bytes = num * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= _LINUX_MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), flags=flags)
    except (OSError, OverflowError, ValueError) as error:
        raise ReservationError(num_bytes=num_bytes, reason=str(error)) from error
    if num_bytes > SMALL_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE, SMALL_BYTES)
        except OSError:  # a kernel without huge pages
            return np.frombuffer(memory, dtype, count=num)
    return np.frombuffer(memory, dtype, count=num)


class RowColumn:
    """Rows by slot, growing without ever moving.

    Args:
        width: Numbers in a row.
        dtype: Their type.
        max_rows: Most rows it may hold; None for ``default_max_rows``.
        table: Named by errors.
        shard: Named by errors.
    """

    def __init__(
        self,
        width: int,
        dtype: DTypeLike = np.float32,
        *,
        max_rows: int | None = None,
        table: str = "",
        shard: int = 0,
    ) -> None:
        row_bytes = width * np.dtype(dtype).itemsize
        self.max_rows = default_max_rows(row_bytes) if max_rows is None else max_rows
        self.width = width
        self._table = table
        self._shard = shard
        self._all = reserve(self.max_rows * width, dtype).reshape(self.max_rows, width)
        self._array = self._all[:0]

    @property
    def array(self) -> NDArray[Any]:
        """Return [capacity, width], zeros where nothing was put; its address never changes."""
        return self._array

    def ensure(self, num_rows: int) -> None:
        """Make ``array`` at least ``num_rows`` long.

        Raises:
            CapacityError: if they are more than ``max_rows``.
        """
        if num_rows <= len(self._array):
            return
        if num_rows > self.max_rows:
            raise CapacityError(
                table=self._table,
                shard=self._shard,
                rows=len(self._array),
                max_rows=self.max_rows,
            )
        self._array = self._all[: min(self.max_rows, max(num_rows, 2 * len(self._array)))]
