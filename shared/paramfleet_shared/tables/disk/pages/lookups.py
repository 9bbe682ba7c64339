"""Rows looked up on pages: keys sorted by page, neighbouring pages read at once.

Pages that nobody wants are read, too, where they lie between wanted ones: to read across a gap
takes less time than another request, up to as many pages as the disk's bandwidth moves in the
time of a request.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.waits import Deadline
from paramfleet_shared.tables.disk.kernels.pages import (
    ABSENT,
    find_rows,
    make_runs,
    pages_of,
)
from paramfleet_shared.tables.disk.pages.ahead import PagesAhead
from paramfleet_shared.tables.disk.pages.files import READ_BYTES, PageFiles, Place
from paramfleet_shared.tables.kernels.basics.sorting import sort_numbered

__all__ = ["CHUNK_BYTES", "Answers", "Lookups", "spans"]

CHUNK_BYTES = 8 << 20
"""Pages that are read before they are searched."""


class Answers(NamedTuple):
    """Where what is found goes to."""

    found: NDArray[np.int64]
    """[m]: ``kernels.pages.FOUND`` or ``ABSENT``."""
    rows: NDArray[np.uint32]
    """[m, pitch]"""


class Lookups:
    """Looks rows up on pages.

    Args:
        files: The pages.
    """

    def __init__(self, files: PageFiles) -> None:
        self._files = files
        self._arena = files.buffers.looked_up
        self._ahead = PagesAhead(files)
        self.gap = 0
        """So many pages that nobody wants may be read between two wanted ones."""
        self.num_seconds = 0
        """Keys for which a second page was read."""

    def find(
        self,
        keys: NDArray[np.uint64],
        numbers: NDArray[np.int64],
        answers: Answers,
        deadline: Deadline | None = None,
    ) -> None:
        """Look keys up.

        Args:
            keys: uint64 [n].
            numbers: int64 [n]: which of the answers is each key's.
            answers: Filled at ``numbers``.
            deadline: When to give up.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
            TierLateError: if the deadline is over.
        """
        files, place = self._files, self._files.main
        pages, order = self.order(keys)
        while keys.size:
            keys, numbers = keys[order], numbers[order]
            self._find_sorted(place, pages, (keys, numbers), answers, deadline)
            following = answers.found[numbers]
            rest = following < ABSENT
            keys, numbers = keys[rest], numbers[rest]
            pages, order = _sorted(-following[rest] - 1)
            place = files.overflow
            self.num_seconds += keys.size

    def begin(self, keys: NDArray[np.uint64]) -> None:
        """Begin to read pages of keys, uint64 [n], that are going to be looked up.

        As many as are searched at once; the others are read when they are needed.
        """
        pages, _ = self.order(keys)
        runs = self._runs(self._files.main, pages)
        num = np.searchsorted(
            np.cumsum(runs[:, 1]), CHUNK_BYTES // self._files.state.page_bytes, side="right"
        )
        self._ahead.begin(spans(runs[:num, 0], runs[:num, 1]))

    def order(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the first pages of keys, uint64 [n], in order, and where each key stood.

        Returns:
            int64 [n] and uint32 [n].
        """
        files = self._files
        pages = np.empty(keys.size, np.int64)
        pages_of(keys, files.form, (files.state.groups, files.state.pages), pages)
        return _sorted(pages)

    def _find_sorted(
        self,
        place: Place,
        pages: NDArray[np.int64],
        wanted: tuple[NDArray[np.uint64], NDArray[np.int64]],
        answers: Answers,
        deadline: Deadline | None,
    ) -> None:
        """Look keys up whose pages are sorted.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
            TierLateError: if the deadline is over.
        """
        size, form = self._files.state.page_bytes, self._files.form
        keys, numbers = wanted
        while place is self._files.main and (there := self._ahead.look(pages)) is not None:
            places, words = there
            here = places >= 0
            find_rows(
                (words, words.view(np.uint32)),
                form,
                (keys[here], places[here], numbers[here]),
                answers.found,
                answers.rows,
            )
            pages, keys, numbers = pages[~here], keys[~here], numbers[~here]
        runs = self._runs(place, pages)
        ends = np.cumsum(runs[:, 1])
        begin = 0
        while begin < len(runs):
            if deadline is not None:
                deadline.check(answers.found.size)
            before = int(ends[begin - 1]) if begin else 0
            end = max(
                begin + 1,
                int(np.searchsorted(ends, before + CHUNK_BYTES // size, side="right")),
            )
            some = runs[begin:end]
            read = spans(some[:, 0], some[:, 1])
            self._files.read(place, read, self._arena)
            first, last = int(some[0, 2]), int(some[-1, 3])
            places = np.searchsorted(read, pages[first:last])
            words = self._arena.words
            find_rows(
                (words, words.view(np.uint32)),
                form,
                (keys[first:last], places, numbers[first:last]),
                answers.found,
                answers.rows,
            )
            begin = end

    def _runs(self, place: Place, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is to be read at once, [m, 4], as ``make_runs`` does."""
        gap = self.gap if place is self._files.main else 0
        most = max(1, READ_BYTES // self._files.state.page_bytes)
        runs = np.empty((pages.size, 4), np.int64)
        return runs[: make_runs(pages, gap, most, runs)]


def _sorted(pages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return pages, int64 [n], sorted in place, and where each of them stood."""
    order = np.empty(pages.size, np.uint32)
    sort_numbered(pages.view(np.uint64), order)
    return pages, order


def spans(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of runs, one behind the other.

    Args:
        firsts: int64 [n]: the first number of each.
        counts: int64 [n]: how many it has.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    shift: NDArray[np.int64] = np.repeat(firsts - (ends - counts), counts)
    return np.arange(total) + shift
