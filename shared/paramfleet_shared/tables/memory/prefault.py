"""Pages that are there before rows come to them.

A page of a reservation is made, and zeroed, when it is first touched: by a kernel in the
middle of a batch, unless somebody touched it before. Beyond ``SMALL_BYTES`` of an array a
thread does, a little ahead of what is in use. It lives only while there are pages to
make, so that there is nothing to stop; it asks the system to make them as if they were
written to, which changes no byte, and so may be behind the array's owner.

Where the system can't (Linux before 5.14, macOS), pages are made at first touch.
"""

import ctypes
import mmap
import os
import sys
import threading
from collections import deque
from typing import Any

from numpy.typing import NDArray

from paramfleet_shared.tables.memory.reservation import SMALL_BYTES

__all__ = ["LEAST_AHEAD", "MOST_AHEAD", "Lookahead", "settled"]

LEAST_AHEAD, MOST_AHEAD = 8 << 20, 256 << 20
"""Bounds of the bytes that are made ahead of those in use."""

SHARE_AHEAD = 32
"""What is in use is this many times what is made ahead of it, within the bounds."""

MOST_SHARE_AHEAD = 4
"""And this many times at least, however fast the array grows."""

_PIECE = 4 << 20
"""Bytes that are made by one call of the system."""

_MADV_POPULATE_WRITE = 23


class Lookahead:
    """The pages of one array from ``reserve``. ``reach`` belongs to the array's owner.

    Args:
        array: Its pages are made from the beginning on.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # which mustn't be unmapped under the thread
        self._made = SMALL_BYTES
        self._wanted = SMALL_BYTES
        self._next = SMALL_BYTES - LEAST_AHEAD
        self._used = 0

    @property
    def made(self) -> int:
        """Return up to which byte the pages are there; rises while ``settled`` is not."""
        return self._made

    def reach(self, used: int) -> None:
        """Say that the first ``used`` bytes are in use; returns at once."""
        grown = used - self._used if self._used else 0
        self._used = used
        if used < self._next or _MADVISE is None:
            return
        # A batch of wide rows may need more than their share: what the next two will.
        by_growth = min(2 * grown, used // MOST_SHARE_AHEAD)
        ahead = max(LEAST_AHEAD, min(MOST_AHEAD, max(used // SHARE_AHEAD, by_growth)))
        self._made = max(self._made, used)
        self._wanted = min(used + ahead, self._array.nbytes)
        self._next = used + ahead // 4
        _THREAD.ask(self)

    def make(self) -> None:
        """Make the pages that are wanted; called by the thread."""
        while self._made < self._wanted:
            self._made = self._make(self._made, self._wanted)

    def make_now(self, num_bytes: int) -> None:
        """Make the pages of the first ``num_bytes`` bytes, in this thread."""
        made, num_bytes = 0, min(num_bytes, self._array.nbytes)
        while _MADVISE is not None and made < num_bytes:
            made = self._make(made, num_bytes)

    def _make(self, made: int, wanted: int) -> int:
        """Make a piece's pages; return up to which byte they are there, or all can be."""
        first = made // mmap.PAGESIZE * mmap.PAGESIZE
        size = min(_PIECE, wanted - first)
        done = _make_pages(self._array.ctypes.data + first, size)
        return max(made, first + size) if done else wanted


class _Thread:
    """Makes pages for all arrays of the process, one piece after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Lookahead] = deque()
        self._running: threading.Thread | None = None

    def ask(self, one: Lookahead) -> None:
        """Have an array's pages made."""
        with self._lock:
            self._waiting.append(one)
            if self._running is None:
                self._running = threading.Thread(
                    target=self._work, name="prefault", daemon=True
                )
                self._running.start()

    def settled(self) -> None:
        """Wait until it has nothing to do."""
        with self._lock:
            running = self._running
        if running is not None:
            running.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = None
                    return
                one = self._waiting.popleft()
            one.make()

    def forget(self) -> None:
        """Begin anew in a forked process, where the thread doesn't run."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._running = None


_THREAD = _Thread()


def settled() -> None:
    """Return when the pages that were wanted before are there."""
    _THREAD.settled()


def _make_pages(address: int, size: int) -> bool:
    """Make pages as a write would; returns whether the system can."""
    done: int = _MADVISE(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
    return done == 0


def _madvise() -> Any:
    return ctypes.CDLL(None, use_errno=True).madvise if sys.platform == "linux" else None


_MADVISE = _madvise()

os.register_at_fork(after_in_child=_THREAD.forget)
