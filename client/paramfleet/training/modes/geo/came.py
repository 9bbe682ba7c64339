"""Which rows a pserver has sent since it went on from an older state.

It sends all that it has once more. What a worker holds beside these is gone there: with a
change of a worker that died together with the pserver, before the change was durable.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.values.replies import has_begun_anew

__all__ = ["RowsThatCame"]

_Ids = NDArray[np.int64]


class RowsThatCame:
    """What has come of each pserver's part of each table. Used by one exchange at a time."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, str], int] = {}
        """Of the newest reply."""
        self._coming: dict[tuple[int, str], list[_Ids]] = {}
        self._whole: dict[tuple[int, str], _Ids] = {}

    def note(self, server: int, table: str, batch: int, ids: _Ids, *, more: bool) -> None:
        """Take note of a reply that is taken in.

        Args:
            server: Whose.
            table: Of which table.
            batch: Its number.
            ids: Of its rows, int64 [n].
            more: Whether rows wait beyond these.
        """
        key = server, table
        before = self._batches.get(key, batch)
        self._batches[key] = batch
        if has_begun_anew(before, batch):
            self._whole.pop(key, None)
            self._coming[key] = []
        if key not in self._coming:
            return
        self._coming[key].append(ids)
        if not more:
            self._whole[key] = np.concatenate(self._coming.pop(key))

    def take(self, table: str) -> dict[int, _Ids]:
        """Return by pserver what has come, int64 [n], where that is all; each once."""
        found = [key for key in self._whole if key[1] == table]
        return {key[0]: self._whole.pop(key) for key in found}
