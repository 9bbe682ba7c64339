"""Which rows of a GEO table each worker has not seen yet.

A worker learns of a change in the reply to its own exchange. A reply may be
lost, doubled or late, so a change is forgotten only when the worker names, in a
later request, a reply that was made after the change and held the row. Until
then the row is sent again, the longest-waiting first.

Kept for each worker: a queue of row numbers in which a row stands once, and a mark
for each row, which says which reply is the first that can hold its newest change. A
reply is the front of the queue; acknowledged, it leaves the queue, but for rows that
changed after it was made: they go to the end. So an exchange costs what it brings
and what it takes, however much waits. A row that waits takes 8 bytes for each
worker, and any other 4 at most.

One thread owns a recorder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.geo.aside import Aside
from paramfleet_shared.tables.kernels.waiting import append_waiting, forget_reported
from paramfleet_shared.values.ids import Rank
from paramfleet_shared.values.replies import first_of
from paramfleet_shared.values.sorting import each_once

__all__ = ["GeoRecorder", "Queued", "RecorderImage", "Reply", "Waiting"]

RowArray = NDArray[np.int64]

ROW_BYTES = 16
"""Of a row that waits and a worker at most: arrays that are too short grow to twice what is
needed."""
MAX_UNACKED = 4
"""Replies to one worker that can still be acknowledged. A worker exchanges one at a
time; more than one is open only after losses. An older one is merely sent again."""

FIRST_ROOM = 1024
"""Rows that a queue has room for at first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The rows to send a worker now."""

    batch: int
    """What the worker must acknowledge; grows by one with each reply to it."""
    rows: RowArray
    """Distinct row numbers, the longest-waiting first. int64 [U]."""
    more: bool
    """Whether rows are waiting beyond these."""


class Waiting(NamedTuple):
    """What waits for one worker."""

    rank: Rank
    batch: int
    """The last reply's number."""
    queue: NDArray[np.uint32]
    """The rows, the longest-waiting first. [n]"""
    marks: NDArray[np.uint32]
    """Of each, which reply is the first that can hold its newest change. [n]"""
    sent: tuple[tuple[int, int], ...]
    """The open replies, oldest first, and how many rows at the queue's front each held."""


class Queued(NamedTuple):
    """What an image knows of one worker."""

    rank: Rank
    batch: int
    """The last reply's number."""
    queue: NDArray[np.uint32]
    """The rows, the longest-waiting first, a view that stays as it is. [n]"""
    sent: tuple[tuple[int, int], ...]
    """As of ``Waiting``."""


class RecorderImage:
    """A recorder at the moment at which this was made.

    Args:
        last_batch: Of the recorder.
        queued: What waits for each worker.
        marks: Of each worker.
    """

    def __init__(self, last_batch: int, queued: Sequence[Queued], marks: Aside) -> None:
        self.last_batch = last_batch
        self.queued = queued
        self.marks = marks

    def read(self, index: int, where: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return some of the rows that waited for a worker, and their marks: int64 [m].

        Args:
            index: Which of ``queued``.
            where: Which of its rows.

        Raises:
            TableMemoryError: if there was no memory for what has changed since.
        """
        rows = self.queued[index].queue[where].astype(np.int64)
        return rows, self.marks.read(index, rows).astype(np.int64)


@dataclass(slots=True)
class _Worker:
    batch: int
    """The last reply's number."""
    marks: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(FIRST_ROOM, np.uint32))
    queue: NDArray[np.uint32] = field(default_factory=lambda: np.empty(FIRST_ROOM, np.uint32))
    first: int = 0
    """Where in ``queue`` the waiting rows begin."""
    end: int = 0
    """And end."""
    sent: dict[int, int] = field(default_factory=dict)
    """For each open reply, oldest first, where in ``queue`` the rows it held end."""
    is_lent: bool = False
    """Whether an image has the queue: what is in it stays where it is."""

    def reserve(self, num: int, num_rows: int) -> None:
        """Let ``num`` more rows queue up, of a table of ``num_rows``."""
        if num_rows > len(self.marks):
            marks = np.zeros(max(num_rows, 2 * len(self.marks)), np.uint32)
            marks[: len(self.marks)] = self.marks
            self.marks = marks
        if self.end + num <= len(self.queue):
            return
        waiting = self.queue[self.first : self.end]
        if self.is_lent or 2 * (len(waiting) + num) > len(self.queue):
            self.queue = np.empty(2 * (len(waiting) + num), np.uint32)
            self.is_lent = False
        self.queue[: len(waiting)] = waiting
        self.sent = {batch: end - self.first for batch, end in self.sent.items()}
        self.first, self.end = 0, len(waiting)


class GeoRecorder:
    """Waiting rows of each worker, of one table or a part of it.

    Args:
        num_workers: Workers that take part from the start; their ranks are
            ``0 .. num_workers - 1``.
        last_batch: Replies are numbered from the next on: more than the last number of a
            recorder that this one takes the place of, or an acknowledgement meant for that
            one could be taken for one of its own.
        term: In which they are numbered. Within it 32 bits do: ``first_of`` is added to what
            travels.
    """

    def __init__(self, *, num_workers: int, last_batch: int = 0, term: int = 0) -> None:
        self.term = term
        self._workers: dict[Rank, _Worker] = {}
        self._last_batch = last_batch
        self._images: list[RecorderImage] = []
        for rank in range(num_workers):
            self.join(Rank(rank))

    @property
    def last_batch(self) -> int:
        """Return the highest number of a reply so far, within its term."""
        batches = (worker.batch for worker in self._workers.values())
        return max(self._last_batch, *batches, 0)

    @property
    def row_bytes(self) -> int:
        """Return the memory that each row takes at most."""
        return ROW_BYTES * len(self._workers)

    def join(self, rank: Rank) -> None:
        """Let a worker take part from now on; what changed before is for ``announce``.

        Its replies are numbered on from the last one to anybody, so that what its former
        self acknowledges, late, is none of its own. Joining twice is a no-op.
        """
        self._workers.setdefault(rank, _Worker(self.last_batch))

    def record(self, rows: RowArray, *, writer: Rank | None) -> None:
        """Note that rows changed, for every worker but the writer.

        Args:
            rows: Their numbers, from 0. int64 [n].
            writer: Whose exchange changed them; None reports to everybody.
        """
        self._put_aside(rows)
        for rank in self._workers:
            if rank != writer:
                self._announce(rank, rows)

    def announce(self, rank: Rank, rows: RowArray) -> None:
        """Let rows, int64 [n] as of ``record``, wait for one worker; may be repeated."""
        self._put_aside(rows)
        self._announce(rank, rows)

    def _announce(self, rank: Rank, rows: RowArray) -> None:
        worker = self._workers.get(rank)
        if worker is None or len(rows) == 0:
            return
        worker.reserve(len(rows), int(rows.max()) + 1)
        reply = np.uint32(worker.batch + 1)
        worker.end = append_waiting(rows, worker.marks, worker.queue, worker.end, reply)

    def acknowledge(self, rank: Rank, batch: int) -> NDArray[np.uint32]:
        """Forget what a worker has seen: it applied reply ``batch`` of its own.

        An unknown number (0, too old, acknowledged before) changes nothing.

        Returns:
            The rows that the reply held, uint32 [n], a view; some may wait again.
        """
        worker = self._workers.get(rank)
        batch -= first_of(self.term)
        if worker is None or batch not in worker.sent:
            return np.empty(0, np.uint32)
        worker.reserve(max(0, worker.sent[batch] - worker.first), 0)
        stop = worker.sent[batch]
        worker.sent = {number: end for number, end in worker.sent.items() if number > batch}
        places = (worker.first, stop, worker.end)
        self._put_aside(worker.queue[worker.first : stop])
        worker.end = forget_reported(worker.queue, places, worker.marks, np.uint32(batch))
        reported = worker.queue[worker.first : stop]
        worker.first = max(worker.first, stop)
        return reported

    def take(self, rank: Rank, *, max_rows: int) -> Reply:
        """Make the next reply to a worker: what it hasn't acknowledged, oldest first.

        Taking again without an acknowledgement sends the same rows again.

        Args:
            rank: The worker.
            max_rows: Most rows in the reply, at least 1.
        """
        worker = self._workers.get(rank)
        if worker is None:
            return Reply(batch=0, rows=np.empty(0, np.int64), more=False)
        stop = min(worker.end, worker.first + max_rows)
        worker.batch += 1
        worker.sent[worker.batch] = stop
        if len(worker.sent) > MAX_UNACKED:
            del worker.sent[next(iter(worker.sent))]
        rows = worker.queue[worker.first : stop].astype(np.int64)
        number = first_of(self.term) + worker.batch
        return Reply(batch=number, rows=rows, more=worker.end > stop)

    def begin_term(self, term: int) -> None:
        """Go on from an older state: no number that a reply has had since then comes again.

        What an acknowledgement of before is meant for is never taken for one of these.

        Args:
            term: Higher than any in which replies were sent.
        """
        self.term = term
        for worker in self._workers.values():
            worker.sent.clear()

    def leave(self, rank: Rank) -> NDArray[np.uint32]:
        """Forget a worker that takes part no more; return what waited for it, uint32 [n]."""
        self._last_batch = self.last_batch
        worker = self._workers.pop(rank, None)
        if worker is None:
            return np.empty(0, np.uint32)
        return worker.queue[worker.first : worker.end]

    def image(self, check: Callable[[int], None] | None) -> RecorderImage:
        """Take an image: it returns what waits as it is now, until ``end_image``.

        It costs a copy of each mark that changes before.

        Args:
            check: Refuses bytes that there is no memory for.
        """
        queued = []
        for rank, worker in self._workers.items():
            worker.is_lent = True
            queue = worker.queue[worker.first : worker.end]
            sent = tuple((batch, end - worker.first) for batch, end in worker.sent.items())
            queued.append(Queued(rank, worker.batch, queue, sent))
        marks = Aside([worker.marks for worker in self._workers.values()], check)
        self._images.append(RecorderImage(self.last_batch, queued, marks))
        return self._images[-1]

    def end_image(self, image: RecorderImage) -> None:
        """Put nothing aside for an image any more. May be repeated."""
        self._images = [each for each in self._images if each is not image]

    def _put_aside(self, rows: NDArray[Any]) -> None:
        """Have images keep the marks of rows, [n], that are about to change."""
        for image in self._images:
            image.marks.keep(rows)

    def restore(self, waiting: Waiting) -> None:
        """Let a worker take part as in another recorder.

        Raises:
            ValueError: if a row waits twice, or a reply held more rows than wait.
        """
        rank, batch, queue, marks, sent = waiting
        if len(each_once(queue)) != len(queue) or not marks.all():
            message = "a row waits twice, or has no mark"
            raise ValueError(message)
        if any(end > len(queue) for _, end in sent):
            message = "a reply held more rows than wait"
            raise ValueError(message)
        worker = self._workers[rank] = _Worker(batch)
        if len(queue):
            worker.reserve(len(queue), int(queue.max()) + 1)
            worker.queue[: len(queue)] = queue
            worker.marks[queue] = marks
        worker.end, worker.sent = len(queue), dict(sent)

    def is_waiting(self, rows: RowArray) -> NDArray[np.bool_]:
        """Return which of some rows, int64 [n], wait for any worker: bool [n]."""
        found = np.zeros(len(rows), np.bool_)
        for worker in self._workers.values():
            known = np.flatnonzero(rows < len(worker.marks))
            found[known] |= worker.marks[rows[known]] != 0
        return found

    def num_waiting(self, rank: Rank) -> int:
        """Return how many rows a worker has not acknowledged."""
        worker = self._workers.get(rank)
        return 0 if worker is None else worker.end - worker.first
