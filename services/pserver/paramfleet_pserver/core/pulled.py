"""The ids of pulls, kept for the pushes that follow them.

A worker that has pulled rows pushes gradients for the same ids a moment later, and need not
send them again: it says which pull they are of. Only each worker's latest are kept, so that
none loses its own to the others; a worker is informed when a pull's ids are gone, and sends
them then.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.served import PulledIdsGoneError

__all__ = ["PulledIds"]

MAX_PULLS = 32
"""Pulls of one table that are kept for one worker: what a full queue of steps is of, those
on their way, and those ahead."""

MAX_BYTES = 16 << 20
"""What they may take."""


class _Kept(NamedTuple):
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        return self.ids.nbytes + self.offsets.nbytes


class _Latest:
    """One worker's latest pulls, the oldest first."""

    def __init__(self) -> None:
        self.pulls: OrderedDict[int, _Kept] = OrderedDict()
        self.num_bytes = 0

    def drop(self, pull: int) -> None:
        dropped = self.pulls.pop(pull, None)
        if dropped is not None:
            self.num_bytes -= dropped.num_bytes


class PulledIds:
    """What was asked for by the latest pulls of one table.

    One task changes it; ``find`` may be called on another thread.

    Args:
        table: Named by errors.
        max_pulls: Pulls that are kept for one worker.
        max_bytes: What the ids and bounds of all of them may take.
    """

    def __init__(
        self, table: str, *, max_pulls: int = MAX_PULLS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._table = table
        self._max_pulls = max_pulls
        self._max_bytes = max_bytes
        self._workers: dict[int, _Latest] = {}

    def keep(
        self, rank: int, pull: int, ids: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        """Keep the ids of a pull, as long as the worker's newer ones don't need the room.

        What is a view of other memory is copied: that may be a whole request.

        Args:
            rank: Who pulled.
            pull: Which of its pulls; a retry carries the same number.
            ids: int64 [n].
            offsets: Bounds of this server's shards in them.
        """
        latest = self._workers.setdefault(rank, _Latest())
        latest.drop(pull)
        max_kept = self._max_bytes - ids.nbytes - offsets.nbytes
        if max_kept < 0 or not self._max_pulls:
            return
        while len(latest.pulls) >= self._max_pulls or latest.num_bytes > max_kept:
            latest.drop(next(iter(latest.pulls)))
        kept = latest.pulls[pull] = _Kept(_owned(ids), _owned(offsets))
        latest.num_bytes += kept.num_bytes

    def find(self, rank: int, pull: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of a pull, and the bounds of this server's shards in them.

        Raises:
            PulledIdsGoneError: if they aren't kept any more.
        """
        latest = self._workers.get(rank)
        kept = None if latest is None else latest.pulls.get(pull)
        if kept is None:
            raise PulledIdsGoneError(table=self._table, rank=rank, pull=pull)
        return kept

    def forget(self, rank: int) -> None:
        """Drop what is kept for a worker; it will push no more."""
        self._workers.pop(rank, None)


def _owned(array: NDArray[np.int64]) -> NDArray[np.int64]:
    return array if array.base is None else array.copy()
