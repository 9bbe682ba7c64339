"""Rows that come in any order, sorted in pieces on the disk.

Shape legend: n = rows, D = row width.
"""

from collections.abc import Callable
from typing import IO

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.merging.file_array import FileArray, KeptFile
from paramfleet_shared.deltas.merging.runs import Run

__all__ = ["SPOOL_BYTES", "RowSpool"]

SPOOL_BYTES = 64 << 20
"""Of rows that are sorted in memory, of all tables together."""


class RowSpool:
    """Takes rows of one table, an id's last ones count, and gives them as runs.

    Args:
        dim: D.
        temporary: Opens a file without a name, which is used if rows are many.
        most_bytes: Of rows in memory.
    """

    def __init__(
        self, dim: int, temporary: Callable[[], IO[bytes]], *, most_bytes: int = SPOOL_BYTES
    ) -> None:
        self._dim = dim
        self._temporary = temporary
        self._most_bytes = most_bytes
        self._pieces: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        self._num_bytes = 0
        self._file: IO[bytes] | None = None
        self._counts: list[int] = []
        """Rows of each run in the file."""

    def add(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Take rows float32 [n, D] of ids int64 [n]; both are copied.

        Raises:
            OSError: if the system refuses the file.
        """
        step = max(1, self._most_bytes // (8 + 4 * self._dim))
        for start in range(0, len(ids), step):
            stop = min(start + step, len(ids))
            piece = ids[start:stop].copy(), rows[start:stop].copy()
            if self._num_bytes + _bytes_of(*piece) > self._most_bytes:
                self._spill()
            self._pieces.append(piece)
            self._num_bytes += _bytes_of(*piece)

    def cut(self) -> int:
        """End the present run; return how many there are. Later rows are in later runs.

        Raises:
            OSError: if the system refuses the file.
        """
        self._spill()
        return len(self._counts)

    def runs(self) -> list[Run]:
        """Return all rows, those that came later in later runs; nothing is added any more.

        Raises:
            OSError: if the system refuses the file.
        """
        if self._file is None:
            return [Run(*self._sorted())] if self._pieces else []
        self._spill()
        kept = KeptFile(self._file)
        self._file.close()
        runs, at = [], 0
        for count in self._counts:
            ids = FileArray(kept, at, (count,), np.int64)
            at += 8 * count
            rows = FileArray(kept, at, (count, self._dim), np.float32)
            at += 4 * count * self._dim
            runs.append(Run(ids, rows))
        return runs

    def _spill(self) -> None:
        if not self._pieces:
            return
        if self._file is None:
            self._file = self._temporary()
        ids, rows = self._sorted()
        self._file.write(ids.data)
        self._file.write(rows.data)
        self._file.flush()
        self._counts.append(len(ids))

    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows that are in memory, which are taken out of it."""
        ids = np.concatenate([ids for ids, _ in self._pieces])
        rows = np.concatenate([rows for _, rows in self._pieces])
        self._pieces, self._num_bytes = [], 0
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        counts = np.ones(len(ids), np.bool_)
        counts[:-1] = ids[1:] != ids[:-1]
        return ids[counts], rows[order[counts]]


def _bytes_of(ids: NDArray[np.int64], rows: NDArray[np.float32]) -> int:
    return ids.nbytes + rows.nbytes
