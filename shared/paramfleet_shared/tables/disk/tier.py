"""Cold rows of a table on disk: read by batches of keys, put and removed through a log.

What is put goes to the end of a log, and only its key stays in memory. Merges bring logged rows
into pages that the hash of the key addresses: a cold row takes no memory. ``put`` and
``remove`` are acknowledged when they return: a process that is killed then loses nothing of
them. ``sync`` returns when the disk has them, too, so that the machine may fail.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.system import lock_folder, open_error
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.access.waits import Deadline
from paramfleet_shared.tables.disk.errors import (
    TierChangedError,
    TierClosedError,
    TierFolderError,
    TierFullError,
)
from paramfleet_shared.tables.disk.kernels.pages import FOUND
from paramfleet_shared.tables.disk.log.logged import UNKNOWN
from paramfleet_shared.tables.disk.log.segments import PUT, REMOVE
from paramfleet_shared.tables.disk.log.writeahead import WriteAhead
from paramfleet_shared.tables.disk.measuring import measure
from paramfleet_shared.tables.disk.merging import PORTIONS, InMemory, merge_into
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.header import TierState
from paramfleet_shared.tables.disk.pages.lookups import Answers, Lookups
from paramfleet_shared.tables.disk.pages.passes import CHUNK_BYTES, all_rows, sweep_rows
from paramfleet_shared.tables.disk.pages.rebuilding import Pages
from paramfleet_shared.tables.disk.parts import TierParts
from paramfleet_shared.tables.disk.stats import TierOptions, TierStats
from paramfleet_shared.tables.memory.shapes import check_array
from paramfleet_shared.tables.rows.layout import RowLayout

__all__ = ["MAX_ROW_BYTES", "DiskTier", "TierOptions", "TierStats"]

_OTHER_STEPS = 8
"""Of a merge, about, beside those for pages and portions."""

_SPREAD = 7 / 8
"""Over so much of what may come meanwhile a merge is spread: calls wait for little of it each,
and none for all that is left of it when the log is full."""

MAX_ROW_BYTES = 1 << 14
"""A page of 64 KiB holds three such rows."""


class DiskTier:
    """Rows of one table, or of a part of it, in a folder. One thread uses it.

    Rows are the bits of all columns, in words of 32 bits, as ``RowLayout`` places them: W of
    them. n = keys of a call.

    Args:
        folder: Made if it isn't there; for this tier alone.
        layout: The columns; those of a folder that has rows already.
        options: How it works.

    Raises:
        TierInUseError: if the folder is open elsewhere.
        TierFolderError: if it holds other rows, or can't be used.
        TierDamagedError: if what is there isn't what was written.
        TierReadError: if it can't be read.
        TierFullError: if there is no room for a new tier.
        TierFailedError: if what a crash left can't be finished.
    """

    def __init__(
        self, folder: Path, layout: RowLayout, options: TierOptions | None = None
    ) -> None:
        self._options = TierOptions() if options is None else options
        if not 0 < layout.row_bytes <= MAX_ROW_BYTES:
            reason = f"a row has {layout.row_bytes:,} bytes, and 1 to {MAX_ROW_BYTES:,} can be"
            raise TierFolderError(path=str(folder), reason=reason)
        self._folder = folder
        self._pitch = layout.row_bytes // 4
        self._changes = 0
        self._merge: Iterator[None] | None = None
        self._lock = lock_folder(folder)
        self._transfers: Transfers | None = None
        self._files: PageFiles | None = None
        self._log: WriteAhead | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            try:
                self._open(layout)
            except OSError as error:
                failure = open_error(folder, error)
                raise failure from error
            stack.pop_all()

    def _open(self, layout: RowLayout) -> None:
        """Open the pages and the log.

        Raises:
            TierFolderError: if the folder holds other rows.
            TierDamagedError: if what is there isn't what was written.
            TierReadError: if it can't be read.
            TierFullError: if there is no room for a new tier.
            TierFailedError: if what a crash left can't be finished.
            OSError: if the system refuses.
        """
        options = self._options
        self._transfers = transfers = Transfers(options.engine, threads=options.buffers.threads)
        salt = secrets.randbits(63) if options.salt is None else options.salt
        fresh = TierState.new(layout, salt)
        files = PageFiles(self._folder, fresh, transfers, options.system, options.buffers)
        self._files = files
        self._pages = Pages(files)
        self._lookups = Lookups(files)
        self._speed = measure(files, transfers, options.clock)
        self._lookups.gap = self._speed.gap(files.state.page_bytes)
        self._log = WriteAhead(
            self._folder,
            files.state,
            transfers,
            options.system,
            (options.memory_bytes, options.buffers.logged),
        )

    @property
    def path(self) -> str:
        """Return the folder, for messages."""
        return str(self._folder)

    # Reading.

    def read(
        self, keys: NDArray[np.uint64], *, limit_s: float | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
        """Return which keys have a row, and the rows: bool [n] and uint32 [n, W].

        The row of a key without one is zeros.

        Args:
            keys: uint64 [n], in any order; a key may occur many times.
            limit_s: Seconds after which nothing more is read; None for no limit.

        Raises:
            RowShapeError: if ``keys`` are not uint64 [n].
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierLateError: if it takes longer than ``limit_s``.
            TierClosedError: if the tier is closed.
            TierFailedError: if a disk has refused to write before.
        """
        files, log = self._ready()
        check_array(keys, np.uint64, (-1,), table=self._name)
        deadline = None
        if limit_s is not None:
            deadline = Deadline(self._options.clock, limit_s, self._folder)
        answers = Answers(
            np.zeros(keys.size, np.int64), np.zeros((keys.size, files.form.pitch), np.uint32)
        )
        places = log.find(keys)
        here, rest = np.flatnonzero(places >= 0), np.flatnonzero(places == UNKNOWN)
        log.read(places[here], here, answers.rows)
        answers.found[here] = FOUND
        self._lookups.find(keys[rest], rest, answers, deadline)
        return answers.found == FOUND, answers.rows

    def read_ahead(self, keys: NDArray[np.uint64]) -> None:
        """Begin to read what the next ``read`` of keys, uint64 [n], needs; waits for nothing.

        What is read is used by the reads that follow, as long as it is as on the disk. A disk
        that refuses is told of by these.

        Raises:
            TierClosedError: if the tier is closed.
            TierFailedError: if a disk has refused to write before.
        """
        _, log = self._ready()
        others = keys[log.find(keys) == UNKNOWN]
        if others.size:
            self._lookups.begin(others)

    def page_order(self, keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the order in which the pages of keys lie: uint32 [n], for uint64 [n].

        A few thousand keys of many, in this order, are on pages beside each other, which are
        read at once.

        Raises:
            TierClosedError: if the tier is closed.
        """
        self._ready()
        return self._lookups.order(keys)[1]

    def iterate(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
        """Yield all rows, in the order of pages: keys uint64 [n] and rows uint32 [n, W].

        What is in the log and not on a page comes last.

        Raises:
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierChangedError: if rows are changed or merged meanwhile.
            TierClosedError: if the tier is closed.
            TierFailedError: if a disk has refused to write before.
        """
        files, log = self._ready()
        number = self._changes
        unseen = [part.is_newest() for part in log.parts]
        most = max(1, CHUNK_BYTES // files.state.page_bytes)
        for keys, rows in all_rows(files, most):
            stays = log.overlay(keys, rows, unseen)
            yield keys[stays], rows[stays]
            self._ready()
            if self._changes != number:
                raise TierChangedError(path=str(self._folder))
        for keys, rows in log.rest(unseen):
            yield keys, rows
            self._ready()
            if self._changes != number:
                raise TierChangedError(path=str(self._folder))

    @property
    def parts(self) -> TierParts:
        """Return what reads rows by where they are."""
        files, log = self._ready()
        return TierParts(files, log, self._pages)

    @property
    def memory_bytes(self) -> int:
        """Return what the keys in the log take."""
        _, log = self._ready()
        return sum(part.num_bytes for part in log.parts)

    def limit_memory(self, memory_bytes: int) -> None:
        """Let the keys in the log take so many bytes from now on; it isn't merged for that."""
        _, log = self._ready()
        log.limit(memory_bytes)

    @property
    def file_bytes(self) -> int:
        """Return how long the files are."""
        files, log = self._ready()
        return files.num_bytes + log.num_bytes

    # Changing.

    def put(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        """Take rows, in one record of the log: all of them, or none.

        May merge for a while, when there are too many keys in the log.

        Args:
            keys: uint64 [n]; of a key that is there twice, the last row counts.
            rows: uint32 [n, W].

        Raises:
            RowShapeError: if an array has another shape or type.
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a merge can't read; nothing was changed.
            TierDamagedError: if a merge finds a damaged page.
            TierClosedError: if the tier is closed.
        """
        check_array(keys, np.uint64, (-1,), table=self._name)
        check_array(rows, np.uint32, (keys.size, self._pitch), table=self._name)
        self._append(PUT, np.ascontiguousarray(keys), np.ascontiguousarray(rows))

    def remove(self, keys: NDArray[np.uint64]) -> None:
        """Remove the rows of keys, in one record of the log; those without one are passed over.

        Where nothing has to survive the process it is noted in memory alone, and needs no room.

        Args:
            keys: uint64 [n].

        Raises:
            RowShapeError: if ``keys`` are not uint64 [n].
            TierFullError: if there is no room where it is written; nothing was changed.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a merge can't read; nothing was changed.
            TierDamagedError: if a merge finds a damaged page.
            TierClosedError: if the tier is closed.
        """
        check_array(keys, np.uint64, (-1,), table=self._name)
        self._append(REMOVE, np.ascontiguousarray(keys), None)

    def _append(
        self, kind: int, keys: NDArray[np.uint64], rows: NDArray[np.uint32] | None
    ) -> None:
        """Log a record, and merge before if that has to be.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a merge can't read; nothing was changed.
            TierDamagedError: if a merge finds a damaged page.
            TierClosedError: if the tier is closed.
        """
        _, log = self._ready()
        if not keys.size:
            return
        if not log.has_room(keys.size):
            try:
                while not log.has_room(keys.size):
                    self._begin_merge(whole=keys.size > log.entries_of_merge)
                    while self._step():
                        pass
            except TierFullError:  # what is noted in memory alone goes beyond
                if kind == PUT or self._options.system.survives:
                    raise
        log.append(kind, keys, rows)
        self._changes += 1

    def sync(self) -> None:
        """Wait until the disk has everything that was put and removed.

        Raises:
            TierFailedError: if it refuses: nobody knows what of it is there.
            TierClosedError: if the tier is closed.
        """
        _, log = self._ready()
        log.sync()

    # Merging.

    @property
    def wants_merge(self) -> bool:
        """Return whether a merge is under way, or should be begun, with ``merge_step``."""
        _, log = self._ready()
        return self._merge is not None or log.is_nearly_full

    @property
    def keys_per_step(self) -> int:
        """Return for how many logged keys one ``merge_step`` is enough.

        Then a merge is done when ``_SPREAD`` of what may come meanwhile has come, where the
        frozen keys are on different pages with as many between them, or on all pages.
        """
        files, log = self._ready()
        frozen, num = log.entries_of_merge, files.state.pages // log.num_ranges
        pages = min(2 * frozen, num + frozen // files.form.holds)
        steps = pages // self._pages.most + PORTIONS + _OTHER_STEPS
        return max(1, int(_SPREAD * log.entries_meanwhile) // steps)

    def merge_step(self) -> bool:
        """Merge for some ten milliseconds of disk; begin if no merge is under way.

        Returns:
            Whether the merge goes on.

        Raises:
            TierFullError: if there is no room; nothing is lost, and it can be begun again.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierClosedError: if the tier is closed.
        """
        self._ready()
        self._changes += 1
        self._begin_merge()
        return self._step()

    def merge(self) -> None:
        """Bring everything that is in the log by now into the pages.

        Raises:
            TierFullError: if there is no room; nothing is lost.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierClosedError: if the tier is closed.
        """
        files, log = self._ready()
        while self._merge is not None or log.is_frozen:  # one may have failed before
            self.merge_step()
        if log.num_entries:
            self._begin_merge(whole=True)
            while self.merge_step():
                pass
        if log.leave_segment(files.state):
            self._note_merged()

    def _begin_merge(self, *, whole: bool = False) -> None:
        """Begin a merge of a part of what is in the log, or of all, if none is under way.

        Raises:
            TierFullError: if there is no room for a new segment.
            TierFailedError: if a disk refuses to write.
        """
        if self._merge is None:
            files, log = self._ready()
            source = log.freeze(files.state, whole=whole)
            self._merge = merge_into(files, self._pages, self._lookups, source)

    def _step(self) -> bool:
        """Do a step of the merge; return whether there are more.

        Raises:
            TierFullError: if there is no room; nothing is lost.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
        """
        self._ready()
        merge, self._merge = self._merge, None  # after an error it is begun again
        assert merge is not None
        if next(merge, self) is not self:
            self._merge = merge
            return True
        self._note_merged()
        return False

    def _note_merged(self) -> None:
        """Say in the pages' state what of the log isn't needed any more, and forget it.

        Raises:
            TierFullError: if there is no room; nothing is lost.
            TierFailedError: if the system refuses to write.
        """
        _, log = self._ready()
        self._pages.note_merged(log.merged_until)
        log.forget_frozen()

    # Passes.

    def write_back(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        """Bring many rows into the pages at once, sorted by page, without the log.

        Everything in the log is merged first. A crash meanwhile leaves some of the rows and
        not others; when it returns, the disk has all of them.

        Args:
            keys: uint64 [n], each once.
            rows: uint32 [n, W].

        Raises:
            RowShapeError: if an array has another shape or type.
            TierFullError: if there is no room; some of the rows may have been taken.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierClosedError: if the tier is closed.
        """
        check_array(keys, np.uint64, (-1,), table=self._name)
        check_array(rows, np.uint32, (keys.size, self._pitch), table=self._name)
        self.merge()
        files, _ = self._ready()
        self._changes += 1
        for _ in merge_into(files, self._pages, self._lookups, InMemory(keys, rows)):
            pass

    def sweep(
        self,
        change: Callable[[NDArray[np.uint64], NDArray[np.uint32]], NDArray[np.bool_]],
    ) -> int:
        """Go through all rows in the order of pages, and write those back that change.

        Everything in the log is merged first. A crash meanwhile leaves some pages changed and
        not others.

        Args:
            change: Gets keys uint64 [n] and rows uint32 [n, W], changes rows in place, and says
                of which: bool [n]. It doesn't use the tier: pages are written meanwhile.

        Returns:
            How many rows were changed.

        Raises:
            TierFullError: if there is no room; some of the pages may have been changed.
            TierFailedError: if a disk refuses to write.
            TierReadError: if a disk refuses.
            TierDamagedError: if a page isn't what was written.
            TierClosedError: if the tier is closed.
        """
        self.merge()
        files, _ = self._ready()
        self._changes += 1
        return sweep_rows(files, self._pages, change)

    # The rest.

    def stats(self) -> TierStats:
        """Return what there is, and what was done.

        Raises:
            TierClosedError: if the tier is closed.
            TierFailedError: if a disk has refused to write before.
        """
        files, log = self._ready()
        state, transfers = files.state, self._transfers
        assert transfers is not None
        return TierStats(
            engine=transfers.engine,
            engine_reason=transfers.reason,
            is_direct=files.is_direct,
            merged_rows=state.rows,
            logged_keys=sum(part.num_keys for part in log.parts),
            log_bytes=log.num_bytes,
            pages=state.pages,
            page_bytes=state.page_bytes,
            overflow_pages=state.overflow_pages,
            file_bytes=self.file_bytes,
            memory_bytes=self.memory_bytes,
            reads_per_s=self._speed.reads_per_s,
            bytes_per_s=self._speed.bytes_per_s,
            gap=self._lookups.gap,
            page_requests=files.num_requests,
            second_reads=self._lookups.num_seconds,
            is_merging=self._merge is not None,
            batches=state.batch,
        )

    def close(self) -> None:
        """Close the files; idempotent. What was acknowledged stays, but not for a power cut."""
        self._merge = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._files is not None:
            self._files.close()
            self._files = None
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _name(self) -> str:
        return f"the rows in {self._folder}"

    def _ready(self) -> tuple[PageFiles, WriteAhead]:
        """Return the files, if they can be used.

        Raises:
            TierClosedError: if they are closed.
            TierFailedError: if a disk has refused to write before.
        """
        if self._files is None or self._log is None:
            raise TierClosedError(path=str(self._folder))
        failure = self._files.failure or self._log.failure
        if failure is not None:
            raise failure
        return self._files, self._log
