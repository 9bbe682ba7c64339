"""Passes over all pages, in their order: chunks are read ahead, and written behind.

The disk works while rows are copied and looked at: reads of the next chunks are under way, and
a helper thread writes the last batch. All that decides stays with the thread that uses the
tier: batches are made one behind the other, and each is committed when the one before is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.kernels.rebuilding import Changes
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.loading import Loaded, Reader, rows_in
from paramfleet_shared.tables.disk.pages.rebuilding import Made, Pages

__all__ = ["CHUNK_BYTES", "Change", "all_rows", "sweep_rows"]

CHUNK_BYTES = 8 << 20
"""Of pages that a pass which only reads reads at once."""

_CHUNKS = 3
"""In memory: one is looked at, of another the overflow pages are read, one is read."""

Change = Callable[[NDArray[np.uint64], NDArray[np.uint32]], NDArray[np.bool_]]
"""Gets keys uint64 [n] and rows uint32 [n, pitch], changes rows in place, and says of which."""

_T = TypeVar("_T")


class _Ahead:
    """Chunks of all pages, in their order, of which some are read ahead.

    Args:
        files: The pages.
        most: Pages of a chunk.
        num: Chunks in memory.
    """

    def __init__(self, files: PageFiles, most: int, num: int) -> None:
        total = files.state.pages
        self._chunks = (np.arange(n, min(total, n + most)) for n in range(0, total, most))
        self._readers = [Reader(files) for _ in range(min(num, -(-total // most)))]

    def close(self) -> None:
        """Wait for what is under way, and end; idempotent."""
        for reader in self._readers:
            reader.close()

    def each(self, use: Callable[[Loaded], _T]) -> Iterator[_T]:
        """Yield what ``use`` makes of each chunk; the chunk is valid in that call alone.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        under_way: deque[Reader] = deque()

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
            begin(reader)  # to the memory that isn't needed any more
            yield made


class _Behind:
    """Commits batches on a helper's thread, one behind the other.

    Args:
        files: The pages.
        pages: What makes batches of them.
    """

    def __init__(self, files: PageFiles, pages: Pages) -> None:
        self._files, self._pages = files, pages
        self._pool = ThreadPoolExecutor(1, "paramfleet-tier-behind")
        self._transfers: Transfers | None = None
        self._arenas = (Arena(), Arena())
        self.last = pages.present
        """The batch that was made last."""
        self._under_way: Future[None] | None = None
        files.helpers.add(self)

    @property
    def room(self) -> Arena:
        """Return where the next batch may be made, while the last one is written."""
        return self._arenas[self.last.batch.state.batch % 2]

    def commit(self, made: Made) -> None:
        """Commit the next batch, when the one before is committed.

        Raises:
            TierFullError: if there was no room for that one.
            TierFailedError: if the system refused to write it.
        """
        self.wait()
        self.last = made
        self._under_way = self._pool.submit(self._write, made)

    def _write(self, made: Made) -> None:
        """Commit a batch, on the helper's thread.

        Raises:
            TierFullError: if there is no room.
            TierFailedError: if the system refuses.
        """
        if self._transfers is None:  # here: a ring is its thread's own
            has_ring = self._files.transfers.engine == "ring"
            threads = self._files.buffers.threads
            self._transfers = Transfers("auto" if has_ring else "threads", threads=threads)
        self._pages.commit(made, self._transfers)

    def wait(self) -> None:
        """Wait until all are committed.

        Raises:
            TierFullError: if there was no room for one.
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
        pages: What makes batches of them.
        change: Gets the rows of a batch of pages; it doesn't use the tier.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room; some of the pages may have been changed.
        TierFailedError: if the system refuses to write.
    """
    form, geometry = files.form, files.state.geometry
    with (
        closing(_Behind(files, pages)) as behind,
        closing(_Ahead(files, pages.most, 2)) as ahead,
    ):

        def one(loaded: Loaded) -> int:
            keys, rows = rows_in(loaded, form)
            changed = np.flatnonzero(change(keys, rows))
            if changed.size:
                changes = Changes(keys[changed], rows, changed)
                where = (loaded.numbers, geometry)
                made = pages.make(loaded, where, changes, behind.last, behind.room)
                behind.commit(made)
            return int(changed.size)

        num = sum(ahead.each(one))
        behind.wait()
    return num
