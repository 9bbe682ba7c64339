"""Which rows of a GEO table each worker has not seen yet.

A worker learns of a change in the reply to its own exchange. A reply may be
lost, doubled or late, so a change is forgotten only when the worker names, in a
later request, a reply that was made after the change and held the row. Until
then the row is sent again, the longest-waiting first.

Kept for each worker: the ids changed since its last reply, those changed before
it, and so on for the last few replies not yet acknowledged. An acknowledged
reply takes its ids out of what had changed before that reply was made, and out
of nothing later. Arrays of ids are shared between workers and merged when they
have doubled: about 8 to 16 bytes a waiting id.

One thread owns a recorder.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.ids import Rank

__all__ = ["GeoRecorder", "Reply"]

IdArray = NDArray[np.int64]

MAX_UNACKED = 4
"""Replies to one worker that can still be acknowledged. A worker exchanges one at a
time; more than one is open only after losses. An older one is merely sent again."""

MERGE_FROM_IDS = 4096
"""Below this many waiting ids, merging arrays costs more than it saves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The rows to send a worker now."""

    batch: int
    """What the worker must acknowledge; grows by one with each reply to it."""
    ids: IdArray
    """Distinct ids, the longest-waiting first. int64 [U]."""
    more: bool
    """Whether ids are waiting beyond these."""


class _Changed:
    """Ids changed between two replies, in order of their first change."""

    __slots__ = ("_arrays", "_merge_at", "_num_ids")

    def __init__(self) -> None:
        self._arrays: list[IdArray] = []
        self._num_ids = 0
        self._merge_at = MERGE_FROM_IDS

    def __len__(self) -> int:
        return self._num_ids

    def add(self, ids: IdArray) -> None:
        self._arrays.append(ids)
        self._num_ids += len(ids)
        if self._num_ids > self._merge_at:
            self._set(self.merged())

    def merged(self) -> IdArray:
        return _distinct(self._arrays)

    def discard(self, sorted_ids: IdArray) -> None:
        ids = self.merged()
        self._set(ids[~_is_in(ids, sorted_ids)])

    def _set(self, ids: IdArray) -> None:
        self._arrays = [ids] if len(ids) else []
        self._num_ids = len(ids)
        self._merge_at = max(MERGE_FROM_IDS, 2 * len(ids))


@dataclass(slots=True)
class _Worker:
    batch: int = 0
    """The last reply's number; 0 before the first."""
    open: _Changed = field(default_factory=_Changed)
    """Changed since the last reply."""
    sent: dict[int, tuple[_Changed, IdArray]] = field(default_factory=dict)
    """By reply number, oldest first: changed before it and after the one before it,
    and the ids it held, sorted."""


class GeoRecorder:
    """Waiting ids of each worker of one table.

    Args:
        num_workers: Workers of the job; their ranks are ``0 .. num_workers - 1``.
    """

    def __init__(self, *, num_workers: int) -> None:
        self._workers = {Rank(rank): _Worker() for rank in range(num_workers)}

    def record(self, ids: IdArray, *, writer: Rank | None) -> None:
        """Note that rows changed, for every worker but the writer.

        Args:
            ids: Changed ids. int64 [n]; kept, and must not change afterwards.
            writer: Whose exchange changed them; None tells everybody.
        """
        if len(ids) == 0:
            return
        for rank, worker in self._workers.items():
            if rank != writer:
                worker.open.add(ids)

    def acknowledge(self, rank: Rank, batch: int) -> None:
        """Forget what a worker has seen: it applied reply ``batch`` of its own.

        An unknown number (0, too old, acknowledged before) changes nothing.
        """
        worker = self._workers.get(rank)
        if worker is None or batch not in worker.sent:
            return
        seen = worker.sent[batch][1]
        earlier = [number for number in worker.sent if number <= batch]
        rest = _Changed()
        for number in earlier:
            changed, _ = worker.sent.pop(number)
            rest.add(changed.merged())
        rest.discard(seen)
        _put_before(worker, rest)

    def take(self, rank: Rank, *, max_rows: int) -> Reply:
        """Make the next reply to a worker: what it hasn't acknowledged, oldest first.

        Taking again without an acknowledgement sends the same ids again.

        Args:
            rank: The worker.
            max_rows: Most ids in the reply, at least 1.
        """
        worker = self._workers.get(rank)
        if worker is None:
            return Reply(batch=0, ids=np.empty(0, np.int64), more=False)
        waiting = _distinct(
            [*(c.merged() for c, _ in worker.sent.values()), worker.open.merged()]
        )
        ids = waiting[:max_rows]
        worker.batch += 1
        worker.sent[worker.batch] = (worker.open, np.sort(ids))
        worker.open = _Changed()
        if len(worker.sent) > MAX_UNACKED:
            oldest = next(iter(worker.sent))
            changed, _ = worker.sent.pop(oldest)
            _put_before(worker, changed)
        return Reply(batch=worker.batch, ids=ids, more=len(waiting) > len(ids))

    def leave(self, rank: Rank) -> None:
        """Forget a worker that takes part no more."""
        self._workers.pop(rank, None)

    def num_waiting(self, rank: Rank) -> int:
        """Return how many ids a worker has not acknowledged (repeats counted)."""
        worker = self._workers.get(rank)
        if worker is None:
            return 0
        return len(worker.open) + sum(len(changed) for changed, _ in worker.sent.values())


def _put_before(worker: _Worker, changed: _Changed) -> None:
    """Let the oldest part still kept begin with ``changed``."""
    oldest = next(iter(worker.sent), None)
    later = worker.open if oldest is None else worker.sent[oldest][0]
    changed.add(later.merged())
    if oldest is None:
        worker.open = changed
    else:
        worker.sent[oldest] = (changed, worker.sent[oldest][1])


def _distinct(arrays: list[IdArray]) -> IdArray:
    """Return the distinct ids in order of first appearance."""
    ids = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]


def _is_in(ids: IdArray, sorted_ids: IdArray) -> NDArray[np.bool_]:
    if len(sorted_ids) == 0:
        return np.zeros(len(ids), np.bool_)
    places = np.searchsorted(sorted_ids, ids)
    found: NDArray[np.bool_] = sorted_ids[np.minimum(places, len(sorted_ids) - 1)] == ids
    return found
