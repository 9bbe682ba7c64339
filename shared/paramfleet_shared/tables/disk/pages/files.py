"""The files of pages: reading them, and replacing some of them by batches.

Pages stand in ``pages`` by their numbers, and what finds no place on them in ``overflow``. A
batch of pages is written twice: first, one behind the other, to ``journal``; then, once they
are on the disk there, to where they belong. A crash in the first leaves the former pages; one
in the second leaves pages that are torn, perhaps, but whole in the journal, from which they
are written again when the folder is opened.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.buffers import Buffers
from paramfleet_shared.tables.disk.access.system import System, write_error
from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.errors import (
    TierDamagedError,
    TierFolderError,
    TierReadError,
)
from paramfleet_shared.tables.disk.kernels.pages import (
    OVERFLOW_FILE,
    WORD_BYTES,
    first_damaged,
    write_empty,
)
from paramfleet_shared.tables.disk.pages.header import (
    FORMAT,
    SLOT_BYTES,
    TierState,
    pack_slot,
    unpack_slot,
)

__all__ = ["JOURNAL", "PAGES", "PAGES_OFFSET", "Batch", "Helping", "PageFiles", "Place"]

PAGES, OVERFLOW, JOURNAL = "pages", "overflow", "journal"
_PAGES_MAGIC, _JOURNAL_MAGIC = b"PFtier\0p", b"PFtier\0j"

PAGES_OFFSET = 1 << 16
"""Of page 0 in ``pages``, behind the slots."""

READ_BYTES, WRITE_BYTES = 256 << 10, 1 << 20
"""Of one request for pages beside each other."""

_TABLE_BYTES = 4096
"""The table of a batch's pages takes a multiple of it."""

_CHANGED = "its checksum or number isn't what was written"


class Place(NamedTuple):
    """A file of pages."""

    file: int
    path: Path
    offset: int
    """Of page 0."""
    tag: int
    """Added to a page's number in its tag."""


class Batch(NamedTuple):
    """Pages that replace others, all of them or none."""

    state: TierState
    """Afterwards."""
    tags: NDArray[np.int64]
    """[n]: those of ``pages`` before those of ``overflow``."""
    words: NDArray[np.uint64]
    """The pages in this order, in an arena."""


class Helping(Protocol):
    """What has reads or writes of the files under way while it isn't called."""

    def close(self) -> None:
        """End it, and wait for them; idempotent."""
        ...


class PageFiles:
    """The files of one tier, open.

    Args:
        folder: Held by this process.
        fresh: The state if there is none yet; else its columns must be those of the folder.
        transfers: Reads and writes pages.
        system: The calls of the system.

    Raises:
        TierFolderError: if the folder holds other rows, or can't be used.
        TierDamagedError: if its state can't be read.
        TierFailedError: if a batch in the journal can't be written again.
        TierFullError: if there is no room.
        OSError: if the system refuses otherwise.
    """

    def __init__(
        self,
        folder: Path,
        fresh: TierState,
        transfers: Transfers,
        system: System,
        buffers: Buffers,
    ) -> None:
        self._system, self.transfers, self._folder = system, transfers, folder
        self.failure: FleetError | None = None
        """Why nothing can be done any more."""
        self.buffers = buffers
        self.out = buffers.made
        """Pages of a batch that is made anew."""
        self.num_requests = 0
        """Reads of pages beside each other."""
        self.helpers: set[Helping] = set()
        """They end before the files are closed."""
        self.note_writing: Callable[[NDArray[np.int64]], None] = _pass
        """Called with the tags of pages before these are written."""
        self._slots = Arena()
        self._files: list[int] = []
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            if not (folder / PAGES).exists():
                _create(folder, fresh, system)
            self.main = self._open(PAGES, PAGES_OFFSET, 0)
            self.overflow = self._open(OVERFLOW, 0, OVERFLOW_FILE)
            self._journal = self._open(JOURNAL, 0, 0)
            system.sync_folder(folder)
            self.state = self._restored(fresh)
            self.form = self.state.form
            self._redo()
            stack.pop_all()

    @property
    def survives(self) -> bool:
        """Return whether pages must be there after a crash: then a batch waits for the disk."""
        return self._system.survives

    @property
    def num_bytes(self) -> int:
        """Return how long the files are."""
        return sum(os.fstat(file).st_size for file in self._files)

    def close(self) -> None:
        """Close the files; idempotent."""
        for helper in list(self.helpers):
            helper.close()
        while self._files:
            os.close(self._files.pop())

    def read(
        self, place: Place, numbers: NDArray[np.int64], arena: Arena, first: int = 0
    ) -> None:
        """Read pages into an arena, one behind the other, and check them.

        Args:
            place: Where they are.
            numbers: int64 [n], sorted, each once.
            arena: Where to.
            first: Pages in the arena that are before them, and stay.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        with self._reading(place):
            self.transfers.run(place.file, *self._extents(place, numbers, arena, first))
        self.check(place, arena.words[first * self.form.page_words :], numbers)

    def begin_read(
        self,
        place: Place,
        numbers: NDArray[np.int64],
        by: tuple[Transfers, Arena],
        first: int = 0,
    ) -> None:
        """Begin to read pages as ``read`` does; ``end_read`` with the same waits for them.

        Args:
            place: Where they are.
            numbers: int64 [n], sorted, each once.
            by: What reads nothing else meanwhile, and where to.
            first: Pages in the arena that are before them, and stay.
        """
        transfers, arena = by
        transfers.begin(place.file, *self._extents(place, numbers, arena, first))

    def end_read(
        self,
        place: Place,
        numbers: NDArray[np.int64],
        by: tuple[Transfers, Arena],
        first: int = 0,
    ) -> None:
        """Wait for pages, and check them.

        Raises:
            TierReadError: if the system refuses.
            TierDamagedError: if a page isn't what was written.
        """
        transfers, arena = by
        with self._reading(place):
            transfers.finish()
        self.check(place, arena.words[first * self.form.page_words :], numbers)

    def _extents(
        self, place: Place, numbers: NDArray[np.int64], arena: Arena, first: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets, sizes and addresses of pages that are to be read."""
        size = self.state.page_bytes
        arena.reserve((first + numbers.size) * size)
        starts, counts = _neighbours(numbers, READ_BYTES // size)
        self.num_requests += starts.size
        return (
            place.offset + numbers[starts] * size,
            counts * size,
            arena.address + (first + starts) * size,
        )

    @contextlib.contextmanager
    def _reading(self, place: Place) -> Iterator[None]:
        """Say of what a refused read was.

        Raises:
            TierReadError: if the system refuses.
        """
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise TierReadError(path=str(place.path), reason=reason) from error

    def check(
        self, place: Place, words: NDArray[np.uint64], numbers: NDArray[np.int64]
    ) -> None:
        """Pass if pages beside each other are what was written.

        Raises:
            TierDamagedError: if one isn't.
        """
        damaged = first_damaged(words, numbers + place.tag, self.form, -1)
        if damaged >= 0:
            raise TierDamagedError(
                path=str(place.path), where=f"page {numbers[damaged]:,}", reason=_CHANGED
            )

    def commit(self, batch: Batch, transfers: Transfers | None = None) -> None:
        """Replace pages: all of them, whatever happens, or none.

        Args:
            batch: The pages; the state is that of the files afterwards.
            transfers: Those of the calling thread; None for those of the tier's.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        if self.failure is not None:
            raise self.failure
        try:
            self._claim(batch.state, batch.tags)
            if self._system.survives:
                self._write_journal(batch)
        except OSError as error:
            raise self._failed(self._journal.path, error, is_whole=True) from error
        try:
            self._write_pages(batch, self.transfers if transfers is None else transfers)
        except OSError as error:
            raise self._failed(self.main.path, error, is_whole=False) from error
        self.state = batch.state

    def trim(self) -> None:
        """Give room back that no page needs.

        Raises:
            TierFailedError: if the system refuses.
        """
        for place, num in self._sizes(self.state):
            size = place.offset + num * self.state.page_bytes
            if os.fstat(place.file).st_size > size:
                try:
                    self._system.truncate(place.file, size)
                except OSError as error:
                    raise self._failed(place.path, error, is_whole=True) from error

    def _failed(self, path: Path, error: OSError, *, is_whole: bool) -> FleetError:
        """Return the error of a refused write, and remember it if nothing can go on."""
        failure = write_error(path, error, is_whole=is_whole)
        if not failure.retryable:
            self.failure = failure
        return failure

    def _sizes(self, state: TierState) -> list[tuple[Place, int]]:
        return [(self.main, state.pages), (self.overflow, state.overflow_pages)]

    def _claim(self, state: TierState, tags: NDArray[np.int64]) -> None:
        """Make sure of the room for all pages.

        Raises:
            OSError: if there is none.
        """
        numbers = tags[tags < OVERFLOW_FILE]
        last = int(numbers[-1]) + 1 if numbers.size else 0
        for place, num in self._sizes(state):
            wanted = max(num, last) if place is self.main else num
            self._system.claim(place.file, place.offset + wanted * state.page_bytes)

    def _write_journal(self, batch: Batch) -> None:
        """Write a batch to the journal, and wait until it is on the disk.

        Raises:
            OSError: if the system refuses.
        """
        state, tags, words = batch
        slot = pack_slot(_JOURNAL_MAGIC, {"state": state.facts(), "pages": tags.size})
        before, after = _slot_words(tags.size), tags.size * self.form.page_words
        head = self._slots.reserve(before * WORD_BYTES)[:before]
        head[:] = 0
        head[: SLOT_BYTES // WORD_BYTES] = np.frombuffer(slot, np.uint64)
        head[SLOT_BYTES // WORD_BYTES :][: tags.size] = tags.view(np.uint64)
        self._system.claim(self._journal.file, (before + after) * WORD_BYTES)
        parts = [each.data.cast("B") for each in (head, words[:after]) if each.size]
        self._system.write(self._journal.file, parts, 0)
        self._system.sync(self._journal.file)

    def _write_pages(self, batch: Batch, transfers: Transfers) -> None:
        """Write pages to where they belong, and wait for the disk.

        Raises:
            OSError: if the system refuses.
        """
        state, tags, words = batch
        self.note_writing(tags)
        base, size = int(words.ctypes.data), state.page_bytes
        num_main = int(np.count_nonzero(tags < OVERFLOW_FILE))
        for place, first, last in (
            (self.main, 0, num_main),
            (self.overflow, num_main, tags.size),
        ):
            if first == last:
                continue
            numbers = tags[first:last] - place.tag
            starts, counts = _neighbours(numbers, WRITE_BYTES // size)
            self._system.write_extents(
                transfers,
                place.file,
                (
                    place.offset + numbers[starts] * size,
                    counts * size,
                    base + (first + starts) * size,
                ),
            )
            if place.tag:
                self._system.sync(place.file)
        if not self._system.survives:
            return
        slot = np.frombuffer(pack_slot(_PAGES_MAGIC, state.facts()), np.uint64)
        memory = self._slots.reserve(SLOT_BYTES)
        memory[: slot.size] = slot
        view = memory.data.cast("B")[:SLOT_BYTES]
        self._system.write(self.main.file, [view], state.batch % 2 * SLOT_BYTES)
        self._system.sync(self.main.file)

    # Opening.

    def _open(self, name: str, offset: int, tag: int) -> Place:
        """Open a file of pages.

        Raises:
            OSError: if the system refuses.
        """
        path = self._folder / name
        file, self.is_direct = self._system.open(path, direct=True)
        self._files.append(file)
        return Place(file, path, offset, tag)

    def _read_words(self, file: int, offset: int, num_bytes: int, arena: Arena) -> None:
        """Read a part of a file to the beginning of an arena.

        Raises:
            OSError: if the system refuses.
        """
        arena.reserve(num_bytes)
        extent = np.array([[offset], [num_bytes], [arena.address]])
        self.transfers.run(file, extent[0], extent[1], extent[2])

    def _slot(self, place: Place, magic: bytes, offset: int) -> dict[str, Any] | None:
        """Read a slot; None if it isn't whole.

        Raises:
            OSError: if the system refuses.
        """
        if os.fstat(place.file).st_size < offset + SLOT_BYTES:
            return None
        self._read_words(place.file, offset, SLOT_BYTES, self._slots)
        return unpack_slot(magic, self._slots.words.tobytes()[:SLOT_BYTES])

    def _restored(self, fresh: TierState) -> TierState:
        """Return the newest state that is whole.

        Raises:
            OSError: if the system refuses.
            TierFolderError: if the folder holds other rows.
            TierDamagedError: if no state is whole.
        """
        slots = [self._slot(self.main, _PAGES_MAGIC, n * SLOT_BYTES) for n in range(2)]
        whole = [slot for slot in slots if slot is not None]
        if not whole:
            raise TierDamagedError(
                path=str(self.main.path), where="its beginning", reason="no state is whole"
            )
        facts = max(whole, key=lambda slot: int(slot["batch"]))
        if facts["format"] != FORMAT:
            reason = f"their format is {facts['format']}, and this program's {FORMAT}"
            raise TierFolderError(path=str(self._folder), reason=reason)
        state = TierState(**facts)
        if (state.columns, state.row_bytes) != (fresh.columns, fresh.row_bytes):
            reason = f"its rows have the columns {state.columns}, and not {fresh.columns}"
            raise TierFolderError(path=str(self._folder), reason=reason)
        return state

    def _redo(self) -> None:
        """Write the batch in the journal again, if it was under way.

        Raises:
            OSError: if the system refuses.
            TierFailedError: if it refuses to write.
        """
        slot = self._slot(self._journal, _JOURNAL_MAGIC, 0)
        if slot is None:
            return
        state = TierState(**slot["state"])
        if state.salt != self.state.salt or state.batch < self.state.batch:
            return
        before = _slot_words(slot["pages"])
        num_bytes = before * WORD_BYTES + slot["pages"] * state.page_bytes
        if os.fstat(self._journal.file).st_size < num_bytes:
            return
        self._read_words(self._journal.file, 0, num_bytes, self.out)
        head = SLOT_BYTES // WORD_BYTES
        tags = self.out.words[head : head + slot["pages"]].view(np.int64).copy()
        pages = self.out.words[before:]
        # A batch that began after this one may have written over a part of it.
        if first_damaged(pages, tags, self.form, state.batch) >= 0:
            return
        self._claim(state, tags)
        try:
            self._write_pages(Batch(state, tags, pages), self.transfers)
        except OSError as error:
            raise self._failed(self.main.path, error, is_whole=False) from error
        self.state = state


def _pass(_: NDArray[np.int64]) -> None:
    """Have nobody who asked."""


def _slot_words(num_pages: int) -> int:
    """Return how many words of the journal are before the pages of a batch."""
    table = -(-num_pages * WORD_BYTES // _TABLE_BYTES) * _TABLE_BYTES
    return (SLOT_BYTES + table) // WORD_BYTES


def _create(folder: Path, fresh: TierState, system: System) -> None:
    """Make the file of pages, which has none of its name before it is whole.

    Raises:
        OSError: if the system refuses.
        TierFolderError: if the folder holds other files of a tier.
        TierFullError: if there is no room.
        TierFailedError: if the system refuses to write.
    """
    if any(folder.glob("log-*")):
        reason = "it has rows in a log, but its file of pages is gone"
        raise TierFolderError(path=str(folder), reason=reason)
    tags = np.arange(fresh.pages)
    words = np.zeros(fresh.pages * fresh.form.page_words, np.uint64)
    write_empty(words, tags, fresh.form)
    slot = pack_slot(_PAGES_MAGIC, fresh.facts())
    draft = folder / f"{PAGES}.draft"
    file, _ = system.open(draft, direct=False)
    try:
        system.write(file, [slot.ljust(PAGES_OFFSET, b"\0"), words.data], 0)
        system.sync(file)
        draft.rename(folder / PAGES)
    except OSError as error:
        failure = write_error(draft, error, is_whole=True)
        raise failure from error
    finally:
        os.close(file)


def _neighbours(
    numbers: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut sorted numbers into runs of ``most`` at most, in which each is the next.

    Returns:
        Where each run begins, and how long it is.
    """
    places = np.arange(numbers.size)
    follows = np.zeros(numbers.size, np.bool_)
    follows[1:] = np.diff(numbers) == 1
    begin = np.maximum.accumulate(np.where(follows, 0, places))
    starts = np.flatnonzero((places - begin) % max(1, most) == 0)
    return starts, np.diff(np.append(starts, numbers.size))
