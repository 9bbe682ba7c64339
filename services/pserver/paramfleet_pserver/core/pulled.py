"""The ids of pulls, kept for the pushes that follow them.

A worker that has pulled rows pushes gradients for the same ids a moment later, and need not
send them again: it says which pull they are of. Only the latest are kept; a worker is told
when a pull's ids are gone, and sends them then.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.served_errors import PulledIdsGoneError

__all__ = ["PulledIds"]

MAX_PULLS = 256
"""Pulls of one table whose ids are kept."""

MAX_IDS = 1 << 23
"""Ids of one table that are kept: 64 MiB."""


class _Kept(NamedTuple):
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]


class PulledIds:
    """What was asked for by the latest pulls of one table. One task owns it.

    Args:
        table: Named by errors.
        max_pulls: Pulls that are kept.
        max_ids: And ids of all of them.
    """

    def __init__(
        self, table: str, *, max_pulls: int = MAX_PULLS, max_ids: int = MAX_IDS
    ) -> None:
        self._table = table
        self._max_pulls = max_pulls
        self._max_ids = max_ids
        self._kept: OrderedDict[tuple[int, int], _Kept] = OrderedDict()
        self._num_ids = 0

    def keep(
        self, rank: int, pull: int, ids: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        """Keep the ids of a pull, as long as no newer ones need the room.

        Args:
            rank: Who pulled.
            pull: Which of its pulls; a retry carries the same number.
            ids: int64 [n].
            offsets: Bounds of this server's shards in them.
        """
        self._drop((rank, pull))
        self._kept[rank, pull] = _Kept(ids, offsets)
        self._num_ids += len(ids)
        while len(self._kept) > self._max_pulls or self._num_ids > self._max_ids:
            self._drop(next(iter(self._kept)))

    def find(self, rank: int, pull: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of a pull, and the bounds of this server's shards in them.

        Raises:
            PulledIdsGoneError: if they aren't kept any more.
        """
        kept = self._kept.get((rank, pull))
        if kept is None:
            raise PulledIdsGoneError(table=self._table, rank=rank, pull=pull)
        return kept

    def _drop(self, key: tuple[int, int]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._num_ids -= len(dropped.ids)
