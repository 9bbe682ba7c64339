"""Pages replaced by others that have what changed, one batch after the other."""

import heapq
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena
from paramfleet_shared.tables.disk.kernels.pages import COUNT, OVERFLOW_FILE, WORD_BYTES
from paramfleet_shared.tables.disk.kernels.rebuilding import (
    Buckets,
    Changes,
    collect,
    count_rows,
    emit,
    next_pages,
    take_rows,
)
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.geometry import Geometry, Regrouping
from paramfleet_shared.tables.disk.pages.header import TierState
from paramfleet_shared.tables.disk.pages.lookups import spans

__all__ = ["BATCH_BYTES", "Hold", "Pages", "no_changes"]

BATCH_BYTES = 16 << 20
"""Of pages that are replaced at once."""


def no_changes(pitch: int) -> Changes:
    """Return that no row changes."""
    return Changes(
        np.empty(0, np.uint64), np.empty((0, pitch), np.uint32), np.empty(0, np.int64)
    )


MOST_HELD = 3
"""Times as many pages as there are may be needed before a hold is broken: more rows than these
would be looked for on overflow pages."""


class Hold:
    """Somebody's wish that each key stays on its page."""

    def __init__(self) -> None:
        self.is_broken = False
        """Whether keys have moved nevertheless."""


class Pages:
    """Replaces pages.

    Args:
        files: Where they are.

    Raises:
        TierReadError: if the overflow pages can't be read.
        TierDamagedError: if one isn't what was written.
    """

    def __init__(self, files: PageFiles) -> None:
        self._files = files
        self._arena = Arena()
        self._none = no_changes(files.form.pitch)
        self._free = self._find_free()
        """A heap of overflow pages that nobody uses."""
        self._holds: list[Hold] = []

    def hold(self) -> Hold:
        """Keep each key on its page, until ``let_go``, or until there are far too few pages."""
        hold = Hold()
        self._holds.append(hold)
        return hold

    def let_go(self, hold: Hold) -> None:
        """End a hold. May be repeated."""
        self._holds = [each for each in self._holds if each is not hold]

    def may_become(self, num_pages: int) -> bool:
        """Return whether there may be so many pages; that breaks holds if it has to be."""
        if self._holds and num_pages <= MOST_HELD * self._files.state.pages:
            return False
        for hold in self._holds:
            hold.is_broken = True
        self._holds = []
        return True

    @property
    def most(self) -> int:
        """Return how many pages a batch may replace."""
        return BATCH_BYTES // self._files.state.page_bytes

    def load(self, numbers: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
        """Read pages and all their overflow pages to the arena.

        Args:
            numbers: int64 [n], sorted, each once.

        Returns:
            How many pages these are, and the numbers of the overflow pages, sorted.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        files = self._files
        files.read(files.main, numbers, self._arena)
        first, last = 0, numbers.size
        found = np.empty(last, np.int64)
        extra: list[NDArray[np.int64]] = []
        while True:
            following = np.sort(
                found[: next_pages(self._arena.words, first, last, files.form, found)]
            )
            if not following.size:
                break
            files.read(files.overflow, following, self._arena, last)
            extra.append(following)
            first, last = last, last + following.size
        return last, np.sort(np.concatenate([np.empty(0, np.int64), *extra]))

    def rows_of(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return all keys and rows of some pages.

        Args:
            numbers: int64 [n], sorted, each once.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        num, _ = self.load(numbers)
        return self._loaded_rows(num)

    def sweep(
        self,
        numbers: NDArray[np.int64],
        change: Callable[[NDArray[np.uint64], NDArray[np.uint32]], NDArray[np.bool_]],
    ) -> int:
        """Let rows of some pages be changed; return how many were.

        Args:
            numbers: int64 [n], sorted, each once.
            change: Gets all keys and rows, changes rows in place, and says of which.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """
        loaded = self.load(numbers)
        keys, rows = self._loaded_rows(loaded[0])
        changed = np.flatnonzero(change(keys, rows))
        if changed.size:
            changes = Changes(keys[changed], rows, changed)
            self._replace(numbers, numbers, self._files.state.geometry, changes, loaded)
        return changed.size

    def _loaded_rows(self, num: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return all keys and rows of the pages in the arena."""
        form, words = self._files.form, self._arena.words
        total = count_rows(words, num, form)
        keys = np.empty(total, np.uint64)
        rows = np.empty((total, form.pitch), np.uint32)
        take_rows((words, words.view(np.uint32)), num, form, keys, rows)
        return keys, rows

    def change(self, numbers: NDArray[np.int64], changes: Changes) -> None:
        """Change rows of some pages.

        Args:
            numbers: int64 [n], sorted, each once.
            changes: Of keys of these pages.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """
        self._replace(numbers, numbers, self._files.state.geometry, changes)

    def regroup(self, step: Regrouping) -> None:
        """Expand or contract groups.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """

        def pages(num: int) -> NDArray[np.int64]:
            firsts = step.first + step.groups * np.arange(num)
            return spans(firsts, np.full(num, step.num))

        self._replace(pages(step.before), pages(step.after), step.geometry, self._none)

    def lay_out(self, first: int, last: int, geometry: Geometry) -> None:
        """Make empty pages of the numbers from ``first`` on and below ``last``.

        While there are no rows at all, any geometry is right for them.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
            TierReadError: never, as nothing is read.
            TierDamagedError: never.
        """
        assert not self._files.state.rows, "they would be looked for elsewhere"
        self._replace(np.empty(0, np.int64), np.arange(first, last), geometry, self._none)

    def note_merged(self, segment: int) -> None:
        """Say that all segments of the log up to one are in the pages; give room back.

        Raises:
            TierFullError: if there is no room for the journal.
            TierFailedError: if the system refuses.
        """
        num = self._files.state.overflow_pages
        free = set(self._free)
        while num - 1 in free:
            num -= 1
        state = self._files.state
        state = replace(state, batch=state.batch + 1, merged=segment, overflow_pages=num)
        self._files.commit(state, np.empty(0, np.int64))
        self._free = [each for each in self._free if each < num]
        heapq.heapify(self._free)
        self._files.trim()

    def _find_free(self) -> list[int]:
        """Return which overflow pages have no rows.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if one isn't what was written.
        """
        free: list[int] = []
        total, form = self._files.state.overflow_pages, self._files.form
        for first in range(0, total, self.most):
            numbers = np.arange(first, min(total, first + self.most))
            self._files.read(self._files.overflow, numbers, self._arena)
            words = self._arena.words[: numbers.size * form.page_words]
            counts = words.reshape(numbers.size, -1)[:, COUNT]
            free.extend(numbers[counts == 0].tolist())
        return free

    def _replace(
        self,
        former: NDArray[np.int64],
        made: NDArray[np.int64],
        geometry: Geometry,
        changes: Changes,
        loaded: tuple[int, NDArray[np.int64]] | None = None,
    ) -> None:
        """Make pages out of others, and commit them.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """
        form = self._files.form
        num, extra = self.load(former) if loaded is None else loaded
        words = self._arena.words
        room = count_rows(words, num, form) + changes.keys.size
        buckets = Buckets(
            np.empty(made.size + 1, np.int64),
            np.empty(made.size, np.int64),
            np.empty(room, np.uint64),
            np.empty(room, np.int64),
        )
        more, needed = collect(
            words, num, form, (made, (geometry.groups, geometry.pages)), changes, buckets
        )
        numbers, free, state = self._extra_numbers(extra, needed)
        out = self._out(made.size + numbers.size)
        flat = changes.rows.reshape(-1)
        state = replace(
            state,
            batch=state.batch + 1,
            groups=geometry.groups,
            pages=geometry.pages,
            rows=state.rows + more,
        )
        emit(
            words.view(np.uint32),
            flat,
            form,
            buckets,
            (out, out.view(np.uint32), made, numbers),
            state.batch,
        )
        tags = np.concatenate([made, numbers + OVERFLOW_FILE])
        self._files.commit(state, tags)
        for each in numbers[needed:].tolist():
            heapq.heappush(free, each)
        self._free = free

    def _extra_numbers(
        self, had: NDArray[np.int64], needed: int
    ) -> tuple[NDArray[np.int64], list[int], TierState]:
        """Return the overflow pages of a batch, what is free then, and the state with them.

        Those that the batch's pages had, of which some may not be needed any more; or all of
        them and others.
        """
        state, free = self._files.state, self._free.copy()
        num = state.overflow_pages
        more: list[int] = []
        while had.size + len(more) < needed:
            if free:
                more.append(heapq.heappop(free))
            else:
                more.append(num)
                num += 1
        numbers = np.sort(np.concatenate([had, np.array(more, np.int64)]))
        return numbers, free, replace(state, overflow_pages=num)

    def _out(self, num_pages: int) -> NDArray[np.uint64]:
        """Return where a batch's pages go, zeros."""
        files = self._files
        before = files.num_slot_words(num_pages)
        after = before + num_pages * files.form.page_words
        out = files.out.reserve(after * WORD_BYTES)[before:after]
        out[:] = 0
        return out
