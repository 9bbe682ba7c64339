"""Pages replaced by others that have what changed, one batch after the other."""

import heapq
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.kernels.pages import COUNT, OVERFLOW_FILE, WORD_BYTES
from paramfleet_shared.tables.disk.kernels.rebuilding import (
    Buckets,
    Changes,
    change_rows,
    collect,
    count_rows,
    emit,
    put_rows,
)
from paramfleet_shared.tables.disk.pages.files import Batch, PageFiles
from paramfleet_shared.tables.disk.pages.geometry import Geometry, Regrouping
from paramfleet_shared.tables.disk.pages.header import TierState
from paramfleet_shared.tables.disk.pages.loading import Loaded, Loader, Reader
from paramfleet_shared.tables.disk.pages.lookups import spans

__all__ = ["BATCH_BYTES", "Hold", "Pages", "no_changes"]

BATCH_BYTES = 16 << 20
"""Of pages that are replaced at once."""

_PARTS = 4
"""Of these, where a part waits for nothing and is read while another is written."""


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
        self._loader = Loader(files, files.buffers.loaded[0])
        self._readers: tuple[Reader, Reader] | None = None
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

    def load(self, numbers: NDArray[np.int64]) -> Loaded:
        """Read pages and all their overflow pages; valid until the next call.

        Args:
            numbers: int64 [n], sorted, each once.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        return self._loader.load(numbers)

    def change(
        self, numbers: NDArray[np.int64], changes_of: Callable[[NDArray[np.int64]], Changes]
    ) -> None:
        """Change rows of some pages.

        Where a batch waits for nothing, these are some batches: pages are read while others
        are made and written.

        Args:
            numbers: int64 [n], sorted, each once.
            changes_of: Returns the changes of keys of some of these pages, sorted.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """
        num_parts = 1 if self._files.survives else _PARTS
        if numbers.size < num_parts:
            self._change(self.load(numbers), changes_of(numbers))
            return
        parts = np.array_split(numbers, num_parts)
        if self._readers is None:
            first, second = self._files.buffers.loaded
            self._readers = Reader(self._files, first), Reader(self._files, second)
        readers = self._readers
        readers[0].begin(parts[0])
        try:
            for at, part in enumerate(parts):
                reader = readers[at % 2]
                reader.go_on()
                if part is not parts[-1]:
                    readers[1 - at % 2].begin(parts[at + 1])
                changes = changes_of(part)
                self._change(reader.loaded(), changes)
        finally:
            for reader in readers:
                reader.forget()

    def _change(self, loaded: Loaded, changes: Changes) -> None:
        """Change rows of pages where they are, or make the pages anew if one lacks room.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        files, state, words = self._files, self._files.state, loaded.words
        order = np.argsort(loaded.extra)
        numbers = (loaded.numbers, loaded.extra[order], loaded.numbers.size + order)
        shape = (state.groups, state.pages)
        images = (words, words.view(np.uint32))
        batch = state.batch + 1
        more, is_done = change_rows(images, numbers, files.form, shape, changes, batch)
        if is_done:
            self._commit(loaded, replace(state, batch=batch, rows=state.rows + more))
        else:
            self._exchange(loaded, loaded.numbers, state.geometry, changes, more)

    def _commit(
        self, loaded: Loaded, state: TierState, transfers: Transfers | None = None
    ) -> None:
        """Write pages back that have changed where they are.

        Raises:
            TierFullError: if there is no room for the journal; nothing was changed on disk.
            TierFailedError: if the system refuses.
        """
        tags = np.concatenate([loaded.numbers, loaded.extra + OVERFLOW_FILE])
        self._files.commit(Batch(state, tags, loaded.words), transfers)

    def overwrite(
        self,
        loaded: Loaded,
        rows: NDArray[np.uint32],
        is_changed: NDArray[np.bool_],
        transfers: Transfers,
    ) -> None:
        """Change rows where they are; no key comes, goes or moves.

        Args:
            loaded: The pages; changed in memory, too.
            rows: uint32 [n, pitch]: all their rows, as ``rows_in`` returns them.
            is_changed: bool [n]: those that are to be written.
            transfers: Those of the calling thread.

        Raises:
            TierFullError: if there is no room for the journal; nothing was changed on disk.
            TierFailedError: if the system refuses to write.
        """
        files, words = self._files, loaded.words
        state = replace(files.state, batch=files.state.batch + 1)
        images = (words, words.view(np.uint32))
        put_rows(images, loaded.num, files.form, (rows, is_changed), state.batch)
        self._commit(loaded, state, transfers)

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
        self._files.commit(Batch(state, np.empty(0, np.int64), np.empty(0, np.uint64)))
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
        arena = Arena()
        total, form = self._files.state.overflow_pages, self._files.form
        for first in range(0, total, self.most):
            numbers = np.arange(first, min(total, first + self.most))
            self._files.read(self._files.overflow, numbers, arena)
            words = arena.words[: numbers.size * form.page_words]
            counts = words.reshape(numbers.size, -1)[:, COUNT]
            free.extend(numbers[counts == 0].tolist())
        return free

    def _replace(
        self,
        former: NDArray[np.int64],
        made: NDArray[np.int64],
        geometry: Geometry,
        changes: Changes,
    ) -> None:
        """Make pages out of others, and commit them.

        Raises:
            TierReadError: if the system refuses to read.
            TierDamagedError: if a page isn't what was written.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses to write.
        """
        self._exchange(self.load(former), made, geometry, changes)

    def _exchange(
        self,
        loaded: Loaded,
        numbers: NDArray[np.int64],
        geometry: Geometry,
        changes: Changes,
        more: int = 0,
    ) -> None:
        """Make pages out of others, and replace them: all of them, whatever happens, or none.

        Args:
            loaded: The others.
            numbers: Of the pages, sorted.
            geometry: Which there are from now on.
            changes: Of keys of these pages.
            more: By how many rows the others have more than on disk.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        form = self._files.form
        words, num = loaded.words, loaded.num
        room = count_rows(words, num, form) + changes.keys.size
        buckets = Buckets(
            np.empty(numbers.size + 1, np.int64),
            np.empty(numbers.size, np.int64),
            np.empty(room, np.uint64),
            np.empty(room, np.int64),
        )
        others, needed = collect(
            words, num, form, (numbers, (geometry.groups, geometry.pages)), changes, buckets
        )
        extra, free, state = self._extra_numbers(np.sort(loaded.extra), needed)
        num_words = (numbers.size + extra.size) * form.page_words
        to = self._files.out.reserve(num_words * WORD_BYTES)[:num_words]
        to[:] = 0
        state = replace(
            state,
            batch=state.batch + 1,
            groups=geometry.groups,
            pages=geometry.pages,
            rows=state.rows + more + others,
        )
        emit(
            words.view(np.uint32),
            changes.rows.reshape(-1),
            form,
            buckets,
            (to, to.view(np.uint32), numbers, extra),
            state.batch,
        )
        for each in extra[needed:].tolist():
            heapq.heappush(free, each)
        tags = np.concatenate([numbers, extra + OVERFLOW_FILE])
        self._files.commit(Batch(state, tags, to))
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
