"""GEO's arithmetic: a replica, what it believes the servers hold, and the difference.

Two copies of every value: ``cur``, which the local optimizer moves, and ``old``,
what this worker and the servers agreed on. With N workers:

* taking a delta: ``delta = (cur - old) / N; old += delta``
* receiving the servers' value P: ``cur += P - old; old = P``

``geo_merge`` says what becomes of the unsent rest ``cur - old``. ``remainder``
keeps it, so that it is sent with later deltas and the total tends to the sum of
all workers' progress (Fleet's rule; see also Wu et al., GEO-SGD, in Fleet's
documentation). ``average`` drops it: ``cur = old`` after taking a delta.

``paced``, ``damped`` and ``mean`` leave the division to the servers, which know how many
workers share what changes: there N = 1, nothing is unsent, and the worker receives what
became of its delta.

A delta that is sent as narrow numbers is sent rounded: ``give_back`` counts what that loses
as unsent, so that it goes with a later delta. With ``remainder`` it is taken out of ``old``
again. With ``average`` that would divide it by N once more and drop the others; there it is
kept apart, and goes undivided.

At the end of training ``take_rest`` sends all that is left, undivided.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet.config.strategy import GeoMerge
from paramfleet.tables.row_store import RowStore
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.replica import (
    differing,
    note_slots,
    receive_rows,
    take_deltas,
)
from paramfleet_shared.tables.memory.reservation import RowColumn
from paramfleet_shared.tables.rows.batch import RowBatch
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rowstore import initial_rows

__all__ = ["OLD", "DenseReplica", "RowReplica"]

OLD = "geo.old"
"""The column of what was agreed of a row's value."""

_LOST = "geo.lost"

_DIVIDED_BY_SERVERS: frozenset[GeoMerge] = frozenset({"paced", "damped", "mean"})


class DenseReplica:
    """A flat vector and its agreed copy, float32 [P].

    The current values live in the model; they are passed in and returned.
    """

    def __init__(
        self, values_P: NDArray[np.float32], *, worker_num: int, merge: GeoMerge
    ) -> None:
        self.old = values_P.copy()
        self._divisor = _divisor_of(worker_num, merge)
        self._drops = merge != "remainder"
        self._lost: NDArray[np.float32] | None = None
        """What deltas lost, to go with the next one; None for nothing."""

    def take_delta(
        self, cur: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the delta to send and the current values to go on with."""
        delta = (cur - self.old) / self._divisor
        self.old += delta
        if not self._drops:
            return delta, cur
        if self._lost is not None:
            delta += self._lost
            self._lost = None
        return delta, self.old.copy()

    def take_rest(
        self, cur: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the last delta and the current values to go on with."""
        if self._drops:
            return self.take_delta(cur)
        delta = cur - self.old
        self.old += delta
        return delta, self.old.copy()

    def delta_of_piece(
        self, cur: NDArray[np.float32], where: slice, *, rest: bool = False
    ) -> NDArray[np.float32]:
        """Return the delta of some values, float32 [n], and change nothing.

        Args:
            cur: Their current values, float32 [n].
            where: Which of [P] they are.
            rest: Whether it is the last one.
        """
        divisor = np.float32(1) if rest and not self._drops else self._divisor
        delta: NDArray[np.float32] = (cur - self.old[where]) / divisor
        return delta

    def take_piece(
        self, cur: NDArray[np.float32], where: slice, *, rest: bool = False
    ) -> NDArray[np.float32]:
        """Return the delta of some values to send; ``receive_piece`` follows before they move.

        Args:
            cur: As in ``delta_of_piece``, and so are the others.
            where: Which.
            rest: Whether it is the last one.
        """
        delta = self.delta_of_piece(cur, where, rest=rest)
        self.old[where] += delta
        return delta

    def receive_piece(
        self,
        cur: NDArray[np.float32],
        where: slice,
        served: NDArray[np.float32],
        *,
        sent: bool = False,
        rest: bool = False,
    ) -> NDArray[np.float32]:
        """Return some current values after receiving what the servers hold, float32 [n].

        Args:
            cur: Before, float32 [n].
            where: Which of [P] they are.
            served: What the servers hold, float32 [n].
            sent: Whether a delta of them was taken just before.
            rest: Whether that was the last one.
        """
        moved = served
        if not (sent and (self._drops or rest)):
            old = self.old[where]
            moved = np.where(cur == old, served, cur + (served - old))
        self.old[where] = served
        return moved

    def reset_piece(self, where: slice, served: NDArray[np.float32]) -> None:
        """Agree on some values, float32 [n]."""
        self.old[where] = served

    def give_back(self, lost: NDArray[np.float32]) -> None:
        """Count a part of the delta that was taken last, float32 [P], as unsent again."""
        if self._drops:
            self._lost = lost
        else:
            self.old -= lost

    def reset(self, values_P: NDArray[np.float32]) -> None:
        """Agree on ``values_P``."""
        self.old = values_P.copy()
        self._lost = None

    def receive(
        self, cur: NDArray[np.float32], served: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the current values after receiving what the servers hold.

        They are exactly ``served`` where nothing is unsent.
        """
        moved: NDArray[np.float32] = np.where(
            cur == self.old, served, cur + (served - self.old)
        )
        self.old = served.copy()
        return moved


class RowReplica:
    """The rows of a store, their agreed copy, and which of them moved.

    Args:
        store: The rows.
        worker_num: N.
        merge: What becomes of the unsent rest.
        num_shards: Of the table on the servers, by which deltas are sorted.
        narrows: Whether deltas are sent as narrow numbers.
    """

    def __init__(
        self,
        store: RowStore,
        *,
        worker_num: int,
        merge: GeoMerge,
        num_shards: int = 1,
        narrows: bool = False,
    ) -> None:
        self.store = store
        self._divisor = _divisor_of(worker_num, merge)
        self._drops = merge != "remainder"
        self._num_shards = num_shards
        self._marks = RowColumn(1, np.uint8, table=store.spec.name)
        self._touched = RowColumn(1, np.int64, table=store.spec.name)
        """Slots of rows that moved since the last delta, each once, as ``_marks`` has it."""
        self._num_touched = 0
        self._deltas = RowColumn(store.spec.dim, table=store.spec.name)
        """Where deltas are put: memory that comes anew each time costs more than they do."""
        store.add_column(OLD, None)
        self._keeps_lost = narrows and self._drops
        if self._keeps_lost:
            store.add_column(_LOST, np.zeros(store.spec.dim, np.float32))

    def touch(self, slots: NDArray[np.int64]) -> None:
        """Remember that the optimizer moved these rows."""
        num_slots = self.store.num_slots
        self._marks.ensure(num_slots)
        self._touched.ensure(num_slots)
        marks, touched = self._marks.array.reshape(-1), self._touched.array.reshape(-1)
        self._num_touched = note_slots(slots, marks, touched, self._num_touched)

    def take_delta(self) -> RowBatch:
        """Return the deltas of the rows that moved; valid until some are taken again."""
        return self._take(self._take_touched(), self._divisor, drops=self._drops)

    def take_rest(self) -> RowBatch:
        """Return the deltas of all rows that still differ from what was agreed.

        They are valid until some are taken again.
        """
        if self._drops:
            if self._keeps_lost:
                self.touch(np.flatnonzero(self._lost.any(axis=1)))
            return self.take_delta()
        self._take_touched()
        count = self.store.num_slots
        slots = np.empty(count + 1, np.int64)
        num = differing(self.store.flat, count, slots, self._layout)
        return self._take(slots[:num], np.float32(1.0), drops=True)

    def give_back(self, ids: NDArray[np.int64], lost: NDArray[np.float32]) -> None:
        """Count a part of the deltas that were taken last as unsent again.

        It goes with the row's next delta, or with the rest.

        Args:
            ids: int64 [U], each once.
            lost: float32 [U, D]: what narrow numbers lost of each row's delta.
        """
        slots = self.store.slots(ids)
        if self._keeps_lost:
            self._lost[slots] = lost
        else:
            self.store.column(OLD)[slots] -= lost

    def receive(self, ids: NDArray[np.int64], served: NDArray[np.float32]) -> None:
        """Take in rows that others changed: ids int64 [U], values float32 [U, D]."""
        slots = self.store.slots_to_overwrite(ids)  # a new row has nothing unsent
        rows = as_input(served, np.float32).reshape(-1)
        receive_rows(self.store.flat, slots, rows, self._layout)

    def drop(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove rows that the servers removed, int64 [n], with all progress of them.

        Returns:
            The slots that they had, int64 [removed].
        """
        slots = self.store.remove(ids)
        self.store.column(OLD)[slots] = self.store.values[slots]  # nothing is unsent there
        if self._keeps_lost:
            self._lost[slots] = 0
        marks = self._marks.array.reshape(-1)
        marks[slots[slots < len(marks)]] = 0
        touched = self._touched.array.reshape(-1)
        kept = touched[: self._num_touched]
        kept = kept[marks[kept] != 0]
        self._num_touched = len(kept)
        touched[: len(kept)] = kept
        return slots

    def install(self, ids: NDArray[np.int64], served: NDArray[np.float32]) -> None:
        """Take rows as the servers hold them, int64 [U] and float32 [U, D], for good."""
        slots = self.store.slots(ids)
        self.store.values[slots] = served
        self.store.column(OLD)[slots] = served
        if self._keeps_lost:
            self._lost[slots] = 0

    def differ(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which rows, int64 [U], don't exist or have other values: bool [U]."""
        slots = self.store.held(ids)
        differs: NDArray[np.bool_] = slots < 0
        held = np.flatnonzero(~differs)
        differs[held] = (self.store.values[slots[held]] != values[held]).any(axis=1)
        return differs

    def forget(self) -> None:
        """Drop all progress: every row is what it was at first."""
        self._take_touched()
        count = self.store.num_slots
        self.store.values[:count] = initial_rows(self.store.spec, self.store.ids())
        self.store.column(OLD)[:count] = self.store.values[:count]
        if self._keeps_lost:
            self._lost[:] = 0

    @property
    def _lost(self) -> NDArray[np.float32]:
        """Return a view of what each row's delta lost, by slot, [slots, D]."""
        return self.store.column(_LOST)[: self.store.num_slots]

    @property
    def _layout(self) -> tuple[int, int, int]:
        return self.store.spec.dim, self.store.pitch, self.store.place(OLD)

    def _take(self, slots: NDArray[np.int64], divisor: np.float32, *, drops: bool) -> RowBatch:
        routed = route(self.store.ids()[slots], self._num_shards)
        self._deltas.ensure(len(slots))
        deltas = self._deltas.array[: len(slots)]
        slots = slots[routed.positions]
        take_deltas(
            self.store.flat,
            slots,
            deltas.reshape(-1),
            self._layout,
            (divisor, drops),
        )
        if self._keeps_lost:
            deltas += self._lost[slots]
            self._lost[slots] = 0
        return RowBatch(routed.ids, deltas, routed.offsets)

    def _take_touched(self) -> NDArray[np.int64]:
        """Return the slots that moved, and begin anew."""
        slots: NDArray[np.int64] = self._touched.array.reshape(-1)[: self._num_touched].copy()
        self._marks.array.reshape(-1)[slots] = 0
        self._num_touched = 0
        return slots


def _divisor_of(worker_num: int, merge: GeoMerge) -> np.float32:
    """Return by what a worker divides its deltas: 1 where the servers do."""
    return np.float32(1 if merge in _DIVIDED_BY_SERVERS else worker_num)
