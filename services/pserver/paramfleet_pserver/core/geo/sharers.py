"""How many workers change a row at the same time.

Workers exchange on their own, so there is no common period to count in. A worker's own
period counts: the time between its exchange before and this one. A row's sharers, as its
writer counts them, are itself and the others' changes in that time, of each worker one at
most in the mean: no more than there are other workers.

Kept for each worker: of each row, in which of its periods others last changed it, and how
often. That is 5 bytes a row and worker, in a table whose deltas are divided by its sharers.

One thread owns it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.geo.aside import Aside
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Counting", "Periods", "Sharers", "SharersImage"]

ROW_BYTES = 10
"""Of a row and worker at most: arrays that are too short grow to twice their length."""
MAX_COUNT = 255
"""Changes that are counted of a row in one period."""


class Periods(NamedTuple):
    """What is counted for one worker."""

    rank: Rank
    step: int
    """Of its last exchange; -1 before the first."""
    ending: int
    """The period that its last exchange ended."""
    period: int
    """The one that runs."""
    periods: NDArray[np.uint32]
    """In which period others last changed a row. [rows]"""
    changes: NDArray[np.uint8]
    """How often they did in it. [rows]"""


class Counting(NamedTuple):
    """What an image knows of one worker."""

    rank: Rank
    counts: tuple[int, int, int]
    """``step``, ``ending`` and ``period`` as of ``Periods``."""
    num_rows: int


class SharersImage:
    """Sharers at the moment at which this was made.

    Args:
        is_used: As of ``Sharers``.
        counting: Of each worker.
        columns: Of each worker, its periods and its changes.
    """

    def __init__(self, counting: Sequence[Counting], columns: Aside, *, is_used: bool) -> None:
        self.is_used = is_used
        self.counting = counting
        self.columns = columns

    def read(self, index: int, where: slice) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the periods, int64 [m], and changes, uint8 [m], of some rows.

        Args:
            index: Which of ``counting``.
            where: Which of its rows.

        Raises:
            TableMemoryError: if there was no memory for what has changed since.
        """
        rows = np.arange(where.start, min(where.stop, self.counting[index].num_rows))
        periods = self.columns.read(2 * index, rows).astype(np.int64)
        return periods, self.columns.read(2 * index + 1, rows)


@dataclass(slots=True)
class _Worker:
    step: int = -1
    """Of its last exchange."""
    ending: int = 1
    """The period that its last exchange ended."""
    period: int = 1
    """The one that runs, from 1."""
    periods: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """In which period others last changed a row. [rows]"""
    changes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """How often they did in it. [rows]"""

    def reach(self, step: Step) -> None:
        """Begin the next period if this is another step's exchange."""
        if step != self.step:
            self.step = step
            self.ending = self.period
            self.period += 1

    def reserve(self, num_rows: int) -> None:
        have = len(self.periods)
        if num_rows > have:
            more = max(num_rows, 2 * have) - have
            self.periods = np.concatenate([self.periods, np.zeros(more, np.uint32)])
            self.changes = np.concatenate([self.changes, np.zeros(more, np.uint8)])


class Sharers:
    """The sharers of each row of a table, or of a part of it.

    Args:
        is_used: Whether they were counted before.
    """

    def __init__(self, *, is_used: bool = False) -> None:
        self._workers: dict[Rank, _Worker] = {}
        self._is_used = is_used
        self._images: list[SharersImage] = []

    @property
    def row_bytes(self) -> int:
        """Return the memory that each row takes at most; 0 until sharers are counted."""
        return ROW_BYTES * len(self._workers) if self._is_used else 0

    @property
    def is_used(self) -> bool:
        """Return whether sharers are counted."""
        return self._is_used

    def image(self, check: Callable[[int], None] | None) -> SharersImage:
        """Take an image: it returns what is counted as it is now, until ``end_image``.

        It costs a copy of each count that changes before.

        Args:
            check: Refuses bytes that there is no memory for.
        """
        counting: list[Counting] = []
        columns: list[NDArray[Any]] = []
        for rank, of in self._workers.items():
            counting.append(Counting(rank, (of.step, of.ending, of.period), len(of.periods)))
            columns += [of.periods, of.changes]
        aside = Aside(columns, check)
        self._images.append(SharersImage(counting, aside, is_used=self._is_used))
        return self._images[-1]

    def end_image(self, image: SharersImage) -> None:
        """Put nothing aside for an image any more. May be repeated."""
        self._images = [each for each in self._images if each is not image]

    def _put_aside(self, rows: NDArray[np.int64]) -> None:
        """Have images keep the counts of rows, [n], that are about to change."""
        for image in self._images:
            image.columns.keep(rows)

    def restore(self, counted: Periods) -> None:
        """Count for a worker on from another's counts.

        Raises:
            ValueError: if they aren't of as many rows.
        """
        rank, step, ending, period, periods, changes = counted
        if len(periods) != len(changes):
            message = "periods and changes are of as many rows"
            raise ValueError(message)
        self._workers[rank] = _Worker(step, ending, period, periods, changes)

    def join(self, rank: Rank) -> None:
        """Let a worker take part from now on. Joining twice is a no-op."""
        self._workers.setdefault(rank, _Worker())

    def leave(self, rank: Rank) -> None:
        """Forget a worker that takes part no more."""
        self._workers.pop(rank, None)

    def count(self, rows: NDArray[np.int64], *, writer: Rank, step: Step) -> NDArray[np.int64]:
        """Return by how many workers each row is shared, the writer included.

        What the writer sends in several messages of one step is of one period; the first of
        them begins its next one.

        Args:
            rows: Row numbers, or -1 for a row that doesn't exist yet. int64 [n].
            writer: In whose period.
            step: That it has taken.

        Returns:
            int64 [n], each from 1 to the number of workers.
        """
        self._is_used = True
        counts = np.ones(len(rows), np.int64)
        worker = self._workers.get(writer)
        if worker is None:
            return counts
        worker.reach(step)
        known = np.flatnonzero((rows >= 0) & (rows < len(worker.periods)))
        numbers = rows[known]
        is_recent = worker.periods[numbers] >= worker.ending
        others = np.where(is_recent, worker.changes[numbers], 0).astype(np.int64)
        counts[known] += np.minimum(others, len(self._workers) - 1)
        return counts

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Count no changes of rows, int64 [n]: they were removed."""
        self._put_aside(rows)
        for worker in self._workers.values():
            worker.periods[rows[rows < len(worker.periods)]] = 0

    def note(self, rows: NDArray[np.int64], *, writer: Rank) -> None:
        """Note that a worker changed rows, int64 [n], in the periods of all others."""
        if not len(rows):
            return
        num_rows = int(rows.max()) + 1
        self._put_aside(rows)
        for rank, worker in self._workers.items():
            if rank == writer:
                continue
            worker.reserve(num_rows)
            before = np.where(
                worker.periods[rows] == worker.period, worker.changes[rows], np.uint8(0)
            )
            worker.changes[rows] = np.minimum(before, MAX_COUNT - 1) + 1
            worker.periods[rows] = worker.period
