"""Rows of a tier by where they are: in the log, on which pages.

A row may be in both places, and in memory, too; the caller knows which counts. Places are
numbers by which parts of all rows are named: first the keys in the log, then ``PAGE_PLACES``
for each page. n = rows of a call, W = words of a row.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.pages import pages_of
from paramfleet_shared.tables.disk.log.logged import UNKNOWN
from paramfleet_shared.tables.disk.log.writeahead import WriteAhead
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.loading import rows_in
from paramfleet_shared.tables.disk.pages.rebuilding import Hold, Pages
from paramfleet_shared.tables.memory.slot_index import distinct

__all__ = ["PAGE_PLACES", "TierParts"]

PAGE_PLACES = 64
"""About as many rows as a page has."""

Rows = tuple[NDArray[np.uint64], NDArray[np.uint32]]
"""Keys [n] and rows [n, W]."""


class TierParts:
    """Reads parts of a tier, until it changes.

    Args:
        files: The pages.
        log: What isn't on them as yet.
        pages: What loads them.
    """

    def __init__(self, files: PageFiles, log: WriteAhead, pages: Pages) -> None:
        self._files, self._log, self._pages = files, log, pages

    @property
    def num_pages(self) -> int:
        """Return how many pages there are, but for overflow pages."""
        return self._files.state.pages

    @property
    def num_merged(self) -> int:
        """Return how many rows are on pages."""
        return self._files.state.rows

    @property
    def num_places(self) -> int:
        """Return how many places there are."""
        return self._log.most_keys + PAGE_PLACES * self.num_pages

    def logged_keys(self) -> NDArray[np.uint64]:
        """Return the keys that the log names, removed ones among them, each once and sorted."""
        return distinct(np.concatenate([part.keys for part in self._log.parts]))

    def is_logged(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of keys, uint64 [n], the log names: bool [n]."""
        named = np.zeros(keys.size, np.bool_)
        for part in self._log.parts:
            named |= part.find(keys) != UNKNOWN
        return named

    def homes_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the page that each of keys, uint64 [n], belongs to: int64 [n]."""
        state, homes = self._files.state, np.empty(keys.size, np.int64)
        pages_of(keys, self._files.form, (state.groups, state.pages), homes)
        return homes

    def on_pages(self, first: int, last: int) -> Rows:
        """Return the rows of pages, whatever the log says of them.

        Args:
            first: The first page.
            last: The one after the last.

        Raises:
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
        """
        most, form = self._pages.most, self._files.form
        parts = [(np.empty(0, np.uint64), np.empty((0, form.pitch), np.uint32))]
        for each in range(first, last, most):
            numbers = np.arange(each, min(last, each + most))
            parts.append(rows_in(self._pages.load(numbers), form))
        keys, rows = zip(*parts, strict=True)
        return np.concatenate(keys), np.concatenate(rows)

    def at_places(
        self,
        start: int,
        stop: int,
        read: Callable[[NDArray[np.uint64]], tuple[NDArray[np.bool_], NDArray[np.uint32]]],
    ) -> Rows:
        """Return the rows of some places, each of which is at one.

        Args:
            start: The first place; below 0 for none before the first one.
            stop: The one after the last.
            read: As of the tier.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        first_page = self._log.most_keys
        keys, rows = np.empty(0, np.uint64), np.empty((0, self._files.form.pitch), np.uint32)
        if stop > 0 and start < first_page:
            logged = self.logged_keys()
            end = logged.size if stop >= first_page else stop  # there may be more than most
            logged = logged[max(0, start) : end]
            found, rows = read(logged)
            keys, rows = logged[found], rows[found]
        bounds = (-(-max(0, each - first_page) // PAGE_PLACES) for each in (start, stop))
        first, last = (min(each, self.num_pages) for each in bounds)
        others, more = self.on_pages(first, last)
        is_other = ~self.is_logged(others)
        return np.concatenate([keys, others[is_other]]), np.concatenate([rows, more[is_other]])

    def hold(self) -> Hold:
        """Keep each key on its page, until the hold is let go, or broken by growth."""
        return self._pages.hold()

    def let_go(self, hold: Hold) -> None:
        """End a hold. May be repeated."""
        self._pages.let_go(hold)
