"""Passes over all pages, in their order: chunks are read ahead, and written behind.

The disk works while rows are copied and looked at: reads of the next chunks are under way, and
a helper thread puts what changed into the last chunk, and writes it. All that decides stays
with the thread that uses the tier: a chunk is written when the one before is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.loading import Loaded, Reader, rows_in
from paramfleet_shared.tables.disk.pages.rebuilding import Pages

__all__ = ["CHUNK_BYTES", "Change", "all_rows", "sweep_rows"]

CHUNK_BYTES = 8 << 20
"""Of pages that a pass which only reads reads at once."""

_CHUNKS = 3
"""In memory: one is looked at, of another the overflow pages are read, one is read."""

_SWEPT = 4
"""In memory, of a sweep: one is written, too."""

Change = Callable[[NDArray[np.uint64], NDArray[np.uint32]], NDArray[np.bool_]]
"""Gets keys uint64 [n] and rows uint32 [n, pitch], changes rows in place, and says of which."""

_T = TypeVar("_T")


class _Ahead:
    """Chunks of all pages, in their order, of which some are read ahead.

    Args:
        files: The pages.
        most: Pages of a chunk.
        num: Chunks in memory.
        num_kept: Those of them that stay there after their use, until as many others were used.
    """

    def __init__(self, files: PageFiles, most: int, num: int, num_kept: int = 0) -> None:
        total = files.state.pages
        self._num_kept = num_kept
        self._chunks = (np.arange(n, min(total, n + most)) for n in range(0, total, most))
        self._readers = [Reader(files) for _ in range(min(num, -(-total // most)))]

    def close(self) -> None:
        """Wait for what is under way, and end; idempotent."""
        for reader in self._readers:
            reader.close()

    def each(self, use: Callable[[Loaded], _T]) -> Iterator[_T]:
        """Yield what ``use`` makes of each chunk, which is valid in that call.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        under_way, used = deque[Reader](), deque[Reader]()

        def begin(reader: Reader) -> None:
            numbers = next(self._chunks, None)
            if numbers is not None:
                reader.begin(numbers)
                under_way.append(reader)

        for each in self._readers:
            begin(each)
        under_way[0].go_on()
        while under_way:
            reader = under_way.popleft()
            if under_way:
                under_way[0].go_on()
            made = use(reader.loaded())
            used.append(reader)
            if len(used) > self._num_kept:
                begin(used.popleft())  # to the memory that isn't needed any more
            yield made


class _Behind:
    """Writes chunks on a helper's thread, one behind the other.

    Args:
        files: The pages.
        pages: What changes them.
    """

    def __init__(self, files: PageFiles, pages: Pages) -> None:
        self._files, self._pages = files, pages
        self._pool = ThreadPoolExecutor(1, "paramfleet-tier-behind")
        self._transfers: Transfers | None = None
        self._under_way: Future[None] | None = None
        files.helpers.add(self)

    def begin(
        self, loaded: Loaded, rows: NDArray[np.uint32], is_changed: NDArray[np.bool_]
    ) -> None:
        """Begin to write a chunk whose rows have changed; the one before is written."""
        assert self._under_way is None, "one behind the other"
        self._under_way = self._pool.submit(self._write, loaded, rows, is_changed)

    def _write(
        self, loaded: Loaded, rows: NDArray[np.uint32], is_changed: NDArray[np.bool_]
    ) -> None:
        """Write a chunk, on the helper's thread.

        Raises:
            TierFullError: if there is no room.
            TierFailedError: if the system refuses.
        """
        if self._transfers is None:  # here: a ring is its thread's own
            engine, threads = (
                self._files.transfers.engine_of_others,
                self._files.buffers.threads,
            )
            self._transfers = Transfers(engine, threads=threads)
        self._pages.overwrite(loaded, rows, is_changed, self._transfers)

    def wait(self) -> None:
        """Wait until what was begun is written.

        Raises:
            TierFullError: if there was no room for it.
            TierFailedError: if the system refused to write it.
        """
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def close(self) -> None:
        """Wait for what is under way, and end; idempotent."""
        self._pool.shutdown()
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None
        self._files.helpers.discard(self)


def all_rows(
    files: PageFiles, most: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
    """Yield all keys and rows of all pages, in their order.

    Args:
        files: The pages; who changes them meanwhile must take nothing more of it.
        most: Pages of a chunk.

    Raises:
        TierReadError: if the system refuses.
        TierDamagedError: if a page isn't what was written.
    """
    form = files.form
    with closing(_Ahead(files, most, _CHUNKS)) as ahead:
        yield from ahead.each(lambda loaded: rows_in(loaded, form))


def sweep_rows(files: PageFiles, pages: Pages, change: Change) -> int:
    """Let all rows of all pages be changed; return how many were.

    Args:
        files: The pages.
        pages: What changes them.
        change: Gets the rows of a batch of pages; it doesn't use the tier.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room; some of the pages may have been changed.
        TierFailedError: if the system refuses to write.
    """
    form = files.form
    with (
        closing(_Behind(files, pages)) as behind,
        closing(_Ahead(files, pages.most, _SWEPT, 1)) as ahead,
    ):

        def one(loaded: Loaded) -> int:
            keys, rows = rows_in(loaded, form)
            is_changed = change(keys, rows)
            num = int(np.count_nonzero(is_changed))
            behind.wait()  # then there will be reads to the memory of the chunk before
            if num:
                behind.begin(loaded, rows, is_changed)
            return num

        num = sum(ahead.each(one))
        behind.wait()
    return num
