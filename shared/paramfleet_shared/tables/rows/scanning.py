"""Going through all rows of a shard as they are, in parts, while others change them."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlaceScan", "RowScan"]


class RowScan(Protocol):
    """Rows by places, each of which is read once or more.

    A row that is there from beginning to end, and that nobody changes, is read as it is.
    One that changes meanwhile is read as it was at some time, or not.
    """

    @property
    def num_places(self) -> int:
        """Return how many places there are."""
        ...

    def read(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids, int64 [n], and values, float32 [n, D], of some places."""
        ...

    def end(self) -> None:
        """Read nothing more. May be repeated."""
        ...


class PlaceScan:
    """Implements ``RowScan`` for rows that keep their places.

    Args:
        num_places: Returns how many places there are by now.
        live_ids: Returns the ids of rows in places: given the first one, and how many.
        pull: Copies the values of ids.
        dim: D.
    """

    def __init__(
        self,
        num_places: Callable[[], int],
        live_ids: Callable[[int, int], NDArray[np.int64]],
        pull: Callable[[NDArray[np.int64], NDArray[np.float32]], None],
        dim: int,
    ) -> None:
        self._num_places = num_places
        self._live_ids = live_ids
        self._pull = pull
        self._dim = dim

    @property
    def num_places(self) -> int:
        """Return how many places there are by now."""
        return self._num_places()

    def read(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids, int64 [n], and values, float32 [n, D], of some places."""
        ids = self._live_ids(start, count).copy()
        values = np.empty((len(ids), self._dim), np.float32)
        self._pull(ids, values)
        return ids, values

    def end(self) -> None:
        """Do nothing: nothing is kept."""
