"""GEO's copies of rows that count their use, or whose ids need to be admitted.

Show and click are sums: what a worker has counted since its last exchange is sent whole, and
added whole. They fade by days on both sides, each from the day on which it has seen the row
last, so a difference is taken of counts that have faded alike. An exchange is of one day.

A row gets its embedx where the worker or a pserver first sees a score that is high enough. Its
first values depend on the id alone, so what a worker learned of them before the pservers know
is a difference from the same numbers.

Shape legend: n = rows of a call, D = numbers of a value, of which embedx are the last ones.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.replica import OLD, RowReplica
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import SparseTable
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.firsts import fill_firsts, firsts_of
from paramfleet_shared.tables.kernels.stepping.counted import (
    CopyLayout,
    agree_counted,
    receive_counted,
    take_counted,
)
from paramfleet_shared.tables.kernels.stepping.ctr import scoring_of
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import MARK_GROWN, MOST_USES, RowBatch
from paramfleet_shared.tables.rows.ctr import NUM_SEEN
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rules.ctr.accessor import NUM_SHORT
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["CountedReplica", "Uses", "added_by", "is_use", "with_marks"]

_Ids = NDArray[np.int64]
_AGREED = "geo.seen"
_SEEN, _GROWN = "seen_day", "is_extended"


class CountedReplica(RowReplica):
    """The rows of a store that have an accessor, and what was agreed of them.

    Args:
        store: The rows.
        how: As of ``RowReplica``.
    """

    def __init__(self, store: RowStore, **how: Any) -> None:
        super().__init__(store, **how)
        self._rate = scoring_of(store.spec.optimizer).decay_rate
        store.add_column(_AGREED, np.zeros(NUM_SEEN, np.float32))

    def has_grown(self, ids: _Ids) -> NDArray[np.bool_]:
        """Return which rows, int64 [n], have their embedx: bool [n]."""
        return self._has_grown(self.store.slots(ids))

    @override
    def receive(self, ids: _Ids, served: NDArray[np.float32]) -> None:
        """Take in rows that others changed: ids int64 [n], float32 [n, D + 2]."""
        if not len(ids):
            return
        slots = self.store.slots_to_overwrite(ids)
        self._agree(slots)
        dim = self.store.spec.dim
        unknown = (served[:, dim + 1] == 0) & self._has_grown(slots)
        if unknown.any():
            served = served.copy()
            served[unknown, NUM_SHORT:dim] = self._drawn(ids[unknown])
        flat = as_input(served, np.float32).reshape(-1)
        receive_counted(self.store.flat, slots, flat, self._copies, self._rate)

    @override
    def install(self, ids: _Ids, served: NDArray[np.float32]) -> None:
        """Nothing that was received of such rows was rounded."""

    @override
    def forget(self) -> None:
        super().forget()
        self.store.column(_AGREED)[: self.store.num_slots] = 0

    @override
    def _take(self, slots: _Ids, divisor: np.float32, *, drops: bool) -> RowBatch:
        routed = route(self.store.ids()[slots], self._num_shards)
        slots = slots[routed.positions]
        self._agree(slots)
        deltas = np.empty((len(slots), self.store.spec.dim), np.float32)
        take_counted(self.store.flat, slots, deltas.reshape(-1), self._copies, (divisor, drops))
        return RowBatch(routed.ids, deltas, routed.offsets)

    def _agree(self, slots: _Ids) -> None:
        """Let what was agreed fade and grow as the rows have since."""
        store, new = self.store, np.empty(len(slots), np.int64)
        num = agree_counted(store.flat, slots, self._copies, self._rate, new)
        if num:
            store.column(OLD)[new[:num], NUM_SHORT:] = self._drawn(store.ids()[new[:num]])

    @property
    def _copies(self) -> CopyLayout:
        """Return where a row's numbers are; columns may have come since."""
        store = self.store
        places = (store.place(name) for name in (OLD, _AGREED, _SEEN, _GROWN))
        return CopyLayout(store.spec.dim, store.pitch, *places)

    def _has_grown(self, slots: _Ids) -> NDArray[np.bool_]:
        grown: NDArray[np.bool_] = self.store.column(_GROWN)[slots, 0] != 0
        return grown

    def _drawn(self, ids: _Ids) -> NDArray[np.float32]:
        """Return the first values of rows' embedx, float32 [n, D - 3]."""
        spec = self.store.spec
        firsts = firsts_of(spec)._replace(drawn=(NUM_SHORT, spec.dim))
        rows = np.empty((len(ids), spec.dim), np.float32)
        keys = as_input(ids, np.int64).view(np.uint64)
        fill_firsts(firsts, keys, rows.reshape(-1), (spec.dim, spec.dim))
        return rows[:, NUM_SHORT:]


class Uses:
    """In how many steps ids came that have no row here, since that was asked last.

    Args:
        store: The rows; what it refuses is counted from now on.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._refused: list[_Ids] = []
        if store.spec.entry.kind == "count_filter":
            store.note_refused = self._refused.append

    def take(self) -> tuple[_Ids, NDArray[np.uint8]]:
        """Return the ids, and in how many steps each came, as marks; begin anew: both [n]."""
        refused = np.concatenate([np.empty(0, np.int64), *self._refused])
        self._refused.clear()
        ids, counts = np.unique(refused, return_counts=True)
        waits = self._store.held(ids) < 0
        return ids[waits], np.minimum(counts[waits], MOST_USES).astype(np.uint8)


def added_by(table: SparseTable) -> OptimizerSpec:
    """Return the rule by which pservers add what workers send of a table."""
    if table.accessor is not None:
        return table.accessor.rule_apart
    kept = table.kept_as
    return OptimizerSpec(rule="sum", tracks=kept.tracks, half_life=kept.half_life)


def is_use(marks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which marks, [n], are of ids that have no row: bool [n]."""
    use: NDArray[np.bool_] = (marks > 0) & (marks < MARK_GROWN)
    return use


def with_marks(
    batch: RowBatch, replica: RowReplica, uses: Uses
) -> tuple[RowBatch, NDArray[np.uint8]]:
    """Return what is sent of a table that counts its rows or has an entry, and its marks.

    Args:
        batch: The differences of rows.
        replica: The rows.
        uses: Of ids without a row.
    """
    marks = np.zeros(len(batch.ids), np.uint8)
    if isinstance(replica, CountedReplica):
        marks[replica.has_grown(batch.ids)] = MARK_GROWN
    others, steps = uses.take()
    if not len(others):
        return batch, marks
    ids = np.concatenate([batch.ids, others])
    nothing = np.zeros((len(others), batch.values.shape[1]), np.float32)
    found, inverse, offsets = partition(ids, len(batch.offsets) - 1)
    values = np.empty((len(ids), batch.values.shape[1]), np.float32)
    both = np.empty(len(ids), np.uint8)
    values[inverse] = np.concatenate([batch.values, nothing])
    both[inverse] = np.concatenate([marks, steps])
    return RowBatch(found, values, offsets), both
