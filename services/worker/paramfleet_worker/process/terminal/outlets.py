"""The launcher's own output, which never lets it wait for who reads it.

A terminal that was stopped, or a pager, may stand still for hours. What is written waits in
memory then, up to a bound, and a thread of its own hands it on. The thread holds no lock that
the end of the process needs: it writes to descriptors, not to Python's streams. What the
launcher starts are executed programs, or forks of another process, so that none is a fork of
this one while the thread holds something.
"""

import os
import select
import stat
import threading
from typing import BinaryIO

from paramfleet_worker.core.showing.backlog import Backlog

__all__ = ["Outlet", "are_one", "outlets"]

MOST_LINES_BYTES = 1 << 20
"""Lines for people that wait at most."""

MOST_RESULTS_BYTES = 1 << 30
"""Results that wait at most for a program."""

ENOUGH_BYTES = 1 << 26
"""Results of which so many wait are to come no faster than the program reads them."""


class Outlet:
    """One output. Any thread may write.

    Args:
        stream: What it leads to.
        writer: Writes to it; None: it can't stand still, and is written at once.
        most_bytes: How many may wait for its reader.
    """

    def __init__(self, stream: BinaryIO, writer: "_Writer | None", most_bytes: int) -> None:
        self.stream = stream
        self._writer = writer
        self._most_bytes = most_bytes
        self._is_open = True
        self._descriptor = -1 if writer is None else stream.fileno()

    @property
    def is_open(self) -> bool:
        """Return whether anything reads it, and its disk isn't full."""
        if self._writer is not None:
            return self._writer.is_open(self._descriptor)
        return self._is_open

    @property
    def has_enough(self) -> bool:
        """Return whether who writes should wait until some of it is read."""
        return self._writer is not None and (
            self._writer.num_bytes(self._descriptor) >= ENOUGH_BYTES
        )

    def write(self, data: bytes, *, is_draft: bool = False) -> bool:
        """Write, without waiting; never fails.

        Args:
            data: The bytes.
            is_draft: Whether the next one like it may take the place of these bytes.

        Returns:
            Whether it was written, or is to be.
        """
        if self._writer is not None:
            return self._writer.put(
                self._descriptor, data, most_bytes=self._most_bytes, is_draft=is_draft
            )
        try:
            if self._is_open:
                self.stream.write(data)
                self.stream.flush()
        except OSError:
            self._is_open = False
        return self._is_open

    def lost_lines(self) -> int:
        """Return how many lines were not shown, once, when there is room again."""
        if self._writer is None:
            return 0
        return self._writer.lost_lines(self._descriptor, most_bytes=self._most_bytes)

    def drain(self, within_s: float) -> int:
        """Wait until the reader has taken everything; give up what it doesn't take.

        Args:
            within_s: How long it may take nothing.

        Returns:
            How many lines it hasn't got.
        """
        if self._writer is None:
            return 0
        self._writer.drain(within_s)
        return self._writer.drop(self._descriptor)

    def close(self) -> None:
        """Take no more, and end the thread once its last write has ended."""
        if self._writer is not None:
            self._writer.close(self._descriptor)
        self._is_open = False


def outlets(out: BinaryIO, err: BinaryIO) -> tuple[Outlet, Outlet]:
    """Return where the results and where the lines go.

    Where both lead to one reader, what goes there keeps its order; else neither waits for the
    other.
    """
    one = _Writer() if are_one(out, err) or (out.isatty() and err.isatty()) else None
    most_bytes = MOST_LINES_BYTES if out.isatty() else MOST_RESULTS_BYTES
    first, second = (
        (one or _Writer()) if _may_stand_still(stream) else None for stream in (out, err)
    )
    return Outlet(out, first, most_bytes), Outlet(err, second, MOST_LINES_BYTES)


def are_one(out: BinaryIO, err: BinaryIO) -> bool:
    """Return whether both lead to the same file or pipe."""
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):  # one is none of the system's, or closed
        return False


def _may_stand_still(stream: BinaryIO) -> bool:
    """Return whether a write can wait for a reader: it is no file, nor in memory."""
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


class _Writer:
    """A thread that writes what it is given; it begins with the first, and ends by ``close``.

    It is a daemon: the process may end while a write waits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._backlog = Backlog()
        self._closed: set[int] = set()
        self._writes = False
        self._num_taken = 0
        self._stands_at = -1
        """What was taken when a reader was given up; it isn't waited for again."""
        self._ends = False
        self._thread: threading.Thread | None = None

    def is_open(self, descriptor: int) -> bool:
        return descriptor not in self._closed

    def put(self, descriptor: int, data: bytes, *, most_bytes: int, is_draft: bool) -> bool:
        if not data:
            return True
        with self._changed:
            if descriptor in self._closed:
                return False
            taken = self._backlog.add(
                descriptor, data, most_bytes=most_bytes, is_draft=is_draft
            )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="console", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return taken

    def lost_lines(self, descriptor: int, *, most_bytes: int) -> int:
        with self._changed:
            return self._backlog.lost_lines(descriptor, most_bytes=most_bytes)

    def num_bytes(self, descriptor: int) -> int:
        with self._changed:
            return self._backlog.num_bytes(descriptor)

    def drain(self, within_s: float) -> None:
        with self._changed:
            while not self._is_idle() and self._num_taken != self._stands_at:
                if not self._moves(within_s):
                    self._stands_at = self._num_taken

    def _moves(self, within_s: float) -> bool:
        before = self._num_taken
        return self._changed.wait_for(lambda: self._num_taken != before, within_s)

    def drop(self, descriptor: int) -> int:
        """Write no more of what waits for a descriptor; return how many lines were lost."""
        with self._changed:
            return self._backlog.drop(descriptor)

    def close(self, descriptor: int) -> None:
        with self._changed:
            self._backlog.drop(descriptor)
            self._closed.add(descriptor)
            self._ends = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not self._backlog and not self._writes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ends or bool(self._backlog))
                if not self._backlog:
                    return
                to, data = self._backlog.take(select.PIPE_BUF)  # as one piece, into a pipe
                self._writes = True
            assert isinstance(to, int), "descriptors alone are given"
            is_open = _write(to, data)
            with self._changed:
                self._writes = False
                self._num_taken += 1
                if not is_open:
                    self._closed.add(to)
                    self._backlog.drop(to)
                self._changed.notify_all()


def _write(descriptor: int, data: bytes) -> bool:
    """Write all; return whether anybody takes it."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another process has let its end of a terminal not block
            select.select([], [descriptor], [])
        except OSError:
            return False
    return True
