"""GEO's arithmetic: a replica, what it believes the servers hold, and the difference.

Two copies of every value: ``cur``, which the local optimizer moves, and ``old``,
what this worker and the servers agreed on. With N workers:

* taking a delta: ``delta = (cur - old) / N; old += delta``
* hearing of the servers' value P: ``cur += P - old; old = P``

``geo_merge`` says what becomes of the unsent rest ``cur - old``. ``remainder``
keeps it, so that it is sent with later deltas and the total tends to the sum of
all workers' progress (Fleet's rule; see also Wu et al., GEO-SGD, in Fleet's
documentation). ``average`` drops it: ``cur = old`` after taking a delta.

At the end of training ``take_rest`` sends all that is left, undivided.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet.rowstore import RowStore
from paramfleet.strategy import GeoMerge
from paramfleet_shared.tables.rowstore import initial_rows

__all__ = ["DenseReplica", "RowReplica"]

_OLD = "geo.old"


class DenseReplica:
    """A flat vector and its agreed copy, float32 [P].

    The current values live in the model; they are passed in and returned.
    """

    def __init__(
        self, values_P: NDArray[np.float32], *, worker_num: int, merge: GeoMerge
    ) -> None:
        self.old = values_P.copy()
        self._worker_num = np.float32(worker_num)
        self._merge = merge

    def take_delta(
        self, cur: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the delta to send and the current values to go on with."""
        delta = (cur - self.old) / self._worker_num
        self.old += delta
        return delta, self.old.copy() if self._merge == "average" else cur

    def take_rest(
        self, cur: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the last delta and the current values to go on with."""
        if self._merge == "average":
            return self.take_delta(cur)
        delta = cur - self.old
        self.old += delta
        return delta, self.old.copy()

    def reset(self, values_P: NDArray[np.float32]) -> None:
        """Agree on ``values_P``."""
        self.old = values_P.copy()

    def hear(
        self, cur: NDArray[np.float32], served: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the current values after hearing what the servers hold."""
        moved = _hear(cur, self.old, served)
        self.old = served.copy()
        return moved


def _hear(
    cur: NDArray[np.float32], old: NDArray[np.float32], served: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return ``cur + (served - old)``; exactly ``served`` where nothing is unsent."""
    moved: NDArray[np.float32] = np.where(cur == old, served, cur + (served - old))
    return moved


class RowReplica:
    """The rows of a store, their agreed copy, and which of them moved."""

    def __init__(self, store: RowStore, *, worker_num: int, merge: GeoMerge) -> None:
        self.store = store
        self._worker_num = np.float32(worker_num)
        self._merge = merge
        self._touched: list[NDArray[np.int64]] = []
        store.add_column(_OLD, None)

    def touch(self, slots: NDArray[np.int64]) -> None:
        """Remember that the optimizer moved these rows."""
        self._touched.append(slots)

    def take_delta(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids int64 [U] and deltas float32 [U, D] of the rows that moved."""
        slots = self._take_touched()
        old = self.store.column(_OLD)
        delta = (self.store.values[slots] - old[slots]) / self._worker_num
        old[slots] += delta
        if self._merge == "average":
            self.store.values[slots] = old[slots]
        return self.store.ids()[slots], delta

    def take_rest(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids and deltas of all rows that still differ from what was agreed."""
        if self._merge == "average":
            return self.take_delta()
        self._touched.clear()
        count = self.store.num_rows
        old, values = self.store.column(_OLD), self.store.values
        slots = np.flatnonzero((values[:count] != old[:count]).any(axis=1))
        delta = values[slots] - old[slots]
        old[slots] += delta
        values[slots] = old[slots]
        return self.store.ids()[slots], delta

    def hear(self, ids: NDArray[np.int64], served: NDArray[np.float32]) -> None:
        """Take in rows that others changed: ids int64 [U], values float32 [U, D]."""
        slots = self.store.slots(ids)
        old = self.store.column(_OLD)
        self.store.values[slots] = _hear(self.store.values[slots], old[slots], served)
        old[slots] = served

    def forget(self) -> None:
        """Drop all progress: every row is what it was at first."""
        self._touched.clear()
        count = self.store.num_rows
        self.store.values[:count] = initial_rows(self.store.spec, self.store.ids())
        self.store.column(_OLD)[:count] = self.store.values[:count]

    def _take_touched(self) -> NDArray[np.int64]:
        if not self._touched:
            return np.empty(0, np.int64)
        slots = np.unique(np.concatenate(self._touched))
        self._touched.clear()
        return slots
