"""Pages read with all their overflow pages, and the rows that are on them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.kernels.pages import Form
from paramfleet_shared.tables.disk.kernels.rebuilding import count_rows, next_pages, take_rows
from paramfleet_shared.tables.disk.pages.files import PageFiles

__all__ = ["Loaded", "Loader", "Reader", "rows_in"]


_OVERFLOWING = 16
"""There is room for overflow pages of one in so many pages; memory for more is copied."""


class Loaded(NamedTuple):
    """Pages in memory, valid until others are read there."""

    numbers: NDArray[np.int64]
    """[n]: those that were asked for."""
    words: NDArray[np.uint64]
    """All of them, their overflow pages behind them."""
    num: int
    """How many these are in all."""
    extra: NDArray[np.int64]
    """The numbers of the overflow pages, as they are in memory."""


class Loader:
    """Reads pages when it is asked.

    Args:
        files: Where they are.
        arena: Where they are read to.
    """

    def __init__(self, files: PageFiles, arena: Arena) -> None:
        self._files = files
        self._arena = arena

    def load(self, numbers: NDArray[np.int64]) -> Loaded:
        """Read pages and all their overflow pages.

        Args:
            numbers: int64 [n], sorted, each once.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        self._files.read(self._files.main, numbers, self._arena)
        extra = _following(self._files, self._arena, 0, numbers.size)
        return _whole(self._files, self._arena, numbers, extra)


class Reader:
    """Reads pages while others are looked at: ``begin``, ``go_on``, ``loaded``, then again.

    Overflow pages are known when the pages are there: their reads are begun by ``go_on``, and
    would else wait behind those of the pages that follow.

    Args:
        files: Where they are.
        arena: Where they are read to; None for memory of its own.
    """

    def __init__(self, files: PageFiles, arena: Arena | None = None) -> None:
        self._files = files
        engine = files.transfers.engine_of_others
        self._transfers = Transfers(engine, may_begin=True, threads=files.buffers.threads)
        self._arena = Arena() if arena is None else arena
        self._numbers = self._extra = np.empty(0, np.int64)
        files.helpers.add(self)

    @property
    def _by(self) -> tuple[Transfers, Arena]:
        return self._transfers, self._arena

    def begin(self, numbers: NDArray[np.int64]) -> None:
        """Begin to read pages: int64 [n], sorted, each once."""
        self._numbers = numbers
        size = self._files.state.page_bytes
        self._arena.reserve((numbers.size + numbers.size // _OVERFLOWING + 1) * size)
        self._files.begin_read(self._files.main, numbers, self._by)

    def go_on(self) -> None:
        """Wait for the pages, and begin to read their overflow pages.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        files, num = self._files, self._numbers.size
        files.end_read(files.main, self._numbers, self._by)
        self._extra = _following(files, self._arena, 0, num)
        files.begin_read(files.overflow, self._extra, self._by, num)

    def loaded(self) -> Loaded:
        """Return the pages, when their overflow pages are there, too.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        files, num = self._files, self._numbers.size
        files.end_read(files.overflow, self._extra, self._by, num)
        extra = _following(files, self._arena, num, num + self._extra.size)
        return _whole(files, self._arena, self._numbers, self._extra, extra)

    def forget(self) -> None:
        """Wait for what is under way, and forget it."""
        self._transfers.forget()

    def close(self) -> None:
        """Wait for what is under way, so that nothing is read to memory of others."""
        self._transfers.close()
        self._files.helpers.discard(self)


def _following(files: PageFiles, arena: Arena, first: int, last: int) -> NDArray[np.int64]:
    """Return the overflow pages that some pages of an arena name, sorted."""
    found = np.empty(last - first, np.int64)
    num = next_pages(arena.words, first, last, files.form, found)
    return np.sort(found[:num])


def _whole(
    files: PageFiles, arena: Arena, numbers: NDArray[np.int64], *extra: NDArray[np.int64]
) -> Loaded:
    """Read the overflow pages that are lacking.

    Args:
        files: Where they are.
        arena: Has the pages, and of the overflow pages all but the last ones.
        numbers: Of the pages.
        extra: Overflow pages, those behind which the others come.

    Raises:
        TierReadError: if the system refuses.
        TierDamagedError: if a page isn't what was written.
    """
    num = numbers.size + sum(each.size for each in extra[:-1])
    all_extra, following = list(extra), extra[-1]
    while following.size:
        files.read(files.overflow, following, arena, num)
        first, num = num, num + following.size
        following = _following(files, arena, first, num)
        all_extra.append(following)
    return Loaded(numbers, arena.words, num, np.concatenate(all_extra))


def rows_in(loaded: Loaded, form: Form) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return all keys and rows of pages: uint64 [n] and uint32 [n, pitch], copies."""
    words, num = loaded.words, loaded.num
    total = count_rows(words, num, form)
    keys = np.empty(total, np.uint64)
    rows = np.empty((total, form.pitch), np.uint32)
    take_rows((words, words.view(np.uint32)), num, form, keys, rows)
    return keys, rows
