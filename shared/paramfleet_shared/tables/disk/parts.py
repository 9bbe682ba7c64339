"""Rows of a tier by where they are: in the log, on which pages.

A row may be in both places, and in memory, too; the caller knows which counts. n = rows of a
call, W = words of a row.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.pages import pages_of
from paramfleet_shared.tables.disk.log.logged import UNKNOWN
from paramfleet_shared.tables.disk.log.writeahead import WriteAhead
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.loading import rows_in
from paramfleet_shared.tables.disk.pages.ranges import KeyRange
from paramfleet_shared.tables.disk.pages.rebuilding import Hold, Pages
from paramfleet_shared.values.sorting import each_once

__all__ = ["PAGE_PLACES", "TierParts"]

PAGE_PLACES = 64
"""About as many rows as a page has: by so many places parts of pages are named."""

Rows = tuple[NDArray[np.uint64], NDArray[np.uint32]]
"""Keys [n] and rows [n, W]."""
Counts = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
Read = Callable[[NDArray[np.uint64]], tuple[NDArray[np.bool_], NDArray[np.uint32]]]


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
    def num_groups(self) -> int:
        """Return how many groups the pages have."""
        return self._files.state.groups

    def logged_keys(self) -> NDArray[np.uint64]:
        """Return the keys that the log names, removed ones among them, each once and sorted."""
        return each_once(np.concatenate([part.keys for part in self._log.parts]))

    def is_logged(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of keys, uint64 [n], the log names: bool [n]."""
        named: NDArray[np.bool_] = self._log.find(keys) != UNKNOWN
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
        return self._on_pages(np.arange(first, last), None)

    def within(self, keys: KeyRange, counts: Counts, read: Read) -> Rows:
        """Return the rows of a range of keys.

        Args:
            keys: The range.
            counts: Returns of which keys, uint64 [n], the rows here count: bool [n].
            read: As of the tier.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        logged = each_once(
            np.concatenate([part.keys[keys.find(part.keys)] for part in self._log.parts])
        )
        logged = logged[counts(logged)]
        found, rows = read(logged)
        others, more = self._on_pages(keys.pages(self._files.state.geometry), keys)
        is_other = counts(others) & ~self.is_logged(others)
        return (
            np.concatenate([logged[found], others[is_other]]),
            np.concatenate([rows[found], more[is_other]]),
        )

    def _on_pages(self, pages: NDArray[np.int64], keys: KeyRange | None) -> Rows:
        """Return the rows of pages, int64 [p], sorted; of a range of keys, or of all.

        Raises:
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
        """
        most, form = self._pages.most, self._files.form
        parts = [(np.empty(0, np.uint64), np.empty((0, form.pitch), np.uint32))]
        for start in range(0, pages.size, most):
            part = rows_in(self._pages.load(pages[start : start + most]), form)
            if keys is not None:
                where = keys.find(part[0])
                part = part[0][where], part[1][where]
            parts.append(part)
        own, rows = zip(*parts, strict=True)
        return np.concatenate(own), np.concatenate(rows)

    def hold(self) -> Hold:
        """Keep each key on its page, until the hold is let go, or broken by growth."""
        return self._pages.hold()

    def let_go(self, hold: Hold) -> None:
        """End a hold. May be repeated."""
        self._pages.let_go(hold)
