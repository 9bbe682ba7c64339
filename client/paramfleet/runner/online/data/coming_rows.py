"""The rows that the next pass will look up, brought into memory late in this one.

Pservers may have rows on disk. While a pass is trained, the data of the next one is looked
through, a part of it between two steps; in the last part of the pass its rows are asked for,
those that come most often first. A worker asks for those of the files that it has read: which
samples are whose is drawn later, and all workers together ask for all rows.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet.training.modes.prefetching.disk_rows import PrefetchedRows
from paramfleet_shared.errors import FleetError

__all__ = ["ComingRows", "IdCounts"]

B = TypeVar("B")

log = logging.getLogger(__name__)

LATE_SHARE = 0.25
"""Of a pass, its last part: rows that are asked for earlier are in the way for longer."""

MOST_IDS = 1 << 21
"""Of a table that are counted: 32 MiB."""

AT_ONCE = 1 << 18
"""Ids of one call, which is one request: of more ids fewer pages are read twice."""

_LOOKED_AT = 16
"""Times as many samples as a batch has, that are looked at between two steps at most."""

_LEAST_NEW = 1 << 16

LookedUp = Sequence[tuple[str, NDArray[np.int64]]]
"""Of a batch: names of tables, and ids [n] that are looked up there."""


class Data(Protocol):
    """The samples of the next pass in this worker."""

    def has_come(self) -> bool:
        """Return whether they are in memory; nothing is waited for."""
        ...

    @property
    def num_samples(self) -> int:
        """How many there are in memory."""
        ...

    @property
    def batch_size(self) -> int:
        """Of the batches that it is trained in."""
        ...

    def in_order(self, batch_size: int) -> Iterator[Any]:
        """Yield them in batches, in the order of their files."""
        ...


class IdCounts:
    """Which ids come how often, of so many at most.

    Args:
        most: Beyond it those that came least often are forgotten.
    """

    def __init__(self, most: int = MOST_IDS) -> None:
        self._most = most
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._new: list[NDArray[np.int64]] = []
        self._num_new = 0

    def add(self, ids: NDArray[np.int64]) -> None:
        """Count ids: int64 [n]."""
        self._new.append(ids)
        self._num_new += ids.size
        if self._num_new >= max(_LEAST_NEW, self._ids.size // 2):
            self._merge()

    def hottest(self) -> NDArray[np.int64]:
        """Return the ids, those that came most often first: int64 [n]."""
        self._merge()
        found: NDArray[np.int64] = self._ids[np.argsort(-self._counts, kind="stable")]
        return found

    def _merge(self) -> None:
        counts = [self._counts, np.ones(self._num_new, np.int64)]
        every = np.concatenate([self._ids, *self._new])
        self._ids, places = np.unique(every, return_inverse=True)
        self._counts = np.bincount(places, np.concatenate(counts)).astype(np.int64)
        self._new, self._num_new = [], 0
        if self._ids.size > self._most:
            keeps = np.sort(np.argpartition(-self._counts, self._most)[: self._most])
            self._ids, self._counts = self._ids[keeps], self._counts[keeps]


class ComingRows:
    """Looks through the next pass's data, and asks for its rows.

    Args:
        looked_up: Returns what a batch of the data looks up; None if that isn't known as yet.
        prefetch: Asks for rows of a table, as ``fleet.prefetch_rows``.
        say: Shows a line.
    """

    def __init__(
        self,
        looked_up: Callable[[Any], LookedUp | None],
        prefetch: Callable[[str, NDArray[np.int64]], PrefetchedRows],
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._looked_up = looked_up
        self._prefetch = prefetch
        self._data: Data | None = None
        self._batches: Iterator[Any] | None = None
        self._first: dict[str, PrefetchedRows] | None = None
        """What the first ids of each table came to, by which it is seen where they are."""
        self._counts: dict[str, IdCounts] = {}
        self._asked: list[PrefetchedRows] = []

    def begin(self, data: Data | None) -> None:
        """Look through this data from now on; None for nothing."""
        self._end_looking()
        self._data, self._first, self._counts = data, None, {}

    def beside(self, batches: Iterable[B], *, steps: int) -> Generator[B, None, None]:
        """Yield the batches of the pass that is trained.

        Args:
            batches: They.
            steps: How many there are, about.
        """
        self._end_asking()
        try:
            for number, batch in enumerate(batches):
                self._work(left=max(1, steps - number), steps=steps)
                yield batch
        finally:
            self._ask()

    def _work(self, *, left: int, steps: int) -> None:
        """Do what is to be done between two steps."""
        if self._data is None or not self._data.has_come():
            return
        try:
            if self._batches is None:
                self._batches = self._data.in_order(self._batch_size(self._data, left))
            batch = next(self._batches, None)
            if batch is not None and not self._look(batch):
                self.begin(None)  # all rows are in memory
            elif batch is None and left <= steps * LATE_SHARE:
                self._ask()
        except FleetError as error:
            self._give_up(error)

    def _batch_size(self, data: Data, left: int) -> int:
        """Return how many samples are looked at between two steps: all in half of them."""
        wanted = -(-data.num_samples * 2 // left)
        return min(max(wanted, data.batch_size), _LOOKED_AT * data.batch_size)

    def _look(self, batch: Any) -> bool:
        """Count what a batch looks up; return whether any of it may be on disk."""
        found = self._looked_up(batch)
        if found is None:
            self._end_looking()  # it begins again after the next step
            return True
        if self._first is None:
            self._first = {table: self._prefetch(table, ids) for table, ids in found}
        for table, ids in found:
            if self._may_be_on_disk(table):
                self._counts.setdefault(table, IdCounts()).add(ids)
        return any(self._may_be_on_disk(table) for table in self._first)

    def _may_be_on_disk(self, table: str) -> bool:
        first = (self._first or {}).get(table)
        return first is not None and (not first.is_done or first.wait().on_disk)

    def _ask(self) -> None:
        """Ask for the rows that were counted, and look no further."""
        try:
            for table, counts in self._counts.items():
                if self._may_be_on_disk(table):
                    ids = counts.hottest()
                    for start in range(0, ids.size, AT_ONCE):
                        some = ids[start : start + AT_ONCE]
                        self._asked.append(self._prefetch(table, some))
        except FleetError as error:
            self._give_up(error)
        self.begin(None)

    def _end_asking(self) -> None:
        """Say what was read; the rest is asked for batch by batch, in the order of its use."""
        asked, self._asked = self._asked, []
        ended = [each for each in asked if each.is_done]
        for each in asked:
            each.cancel()
        try:
            done = [each.wait() for each in ended]
        except FleetError as error:
            self._give_up(error)
            return
        if done:
            brought, left = sum(e.brought for e in done), sum(e.left for e in done)
            out = f", {left:,} left on disk or without a row" if left else ""
            self._say(f"rows of this pass that were read from disk before it: {brought:,}{out}")

    def _give_up(self, error: FleetError) -> None:
        facts = {"reason": str(error), "remedy": "the next pass reads rows as it needs them"}
        log.warning("worker.rows_not_prefetched", extra=facts)
        self.begin(None)

    def _end_looking(self) -> None:
        batches, self._batches = self._batches, None
        if isinstance(batches, Generator):
            batches.close()
