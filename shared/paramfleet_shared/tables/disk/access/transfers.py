"""Many reads or writes at once, by the way that this machine allows.

An io_uring reads a page with the least work of a processor. Containers often forbid its system
calls; then threads read, each in a kernel. What can't be transferred is tried again by itself
through ``os``, which says what is wrong.
"""

import ctypes
import errno
import mmap
import os
import platform
import threading
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.threads import Shared, Threads
from paramfleet_shared.tables.disk.kernels.transfers import (
    SETUP,
    Extents,
    RingArrays,
    await_ring,
    begin_by_ring,
    transfer_by_ring,
    transfer_in_turn,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Arena", "Engine", "Transfers"]

Engine = Literal["auto", "ring", "threads"]

DEPTH = 64
"""Reads at once through a ring: more gain little and wait longer."""

_ENTRIES = 2 * DEPTH

_ONE_ISSUER, _COMPLETES_IN_ENTER = 1 << 12, 1 << 13
_ENTRIES_OFFSET = 0x10000000
_PARAMETERS = 30
"""Words of 32 bits of what ``SETUP`` takes and answers."""


class Arena:
    """Memory that files can be read to directly: aligned, and kept for the next use."""

    def __init__(self) -> None:
        self.words = np.empty(0, np.uint64)
        """The memory, as words of 64 bits."""

    def reserve(self, num_bytes: int) -> NDArray[np.uint64]:
        """Return at least so many bytes; what was there before is kept."""
        if num_bytes > self.words.nbytes:
            size = max(num_bytes, 2 * self.words.nbytes, 1 << 16)
            memory = np.frombuffer(mmap.mmap(-1, -(-size // 4096) * 4096), np.uint64)
            memory[: self.words.size] = self.words
            self.words = memory
        return self.words

    @property
    def address(self) -> int:
        """Return where the memory is."""
        return int(self.words.ctypes.data)


class _Ring:
    """An io_uring.

    Args:
        entries: Transfers at once.
        of_one_thread: Whether the one that makes it alone uses it.

    Raises:
        OSError: if the system has none, or forbids it.
    """

    def __init__(self, entries: int, *, of_one_thread: bool) -> None:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        parameters = np.zeros(_PARAMETERS, np.uint32)
        # Without these flags completions come at any time: that needs barriers which kernels
        # don't have, but for processors that keep the order of stores.
        flags = [_ONE_ISSUER | _COMPLETES_IN_ENTER] if of_one_thread else []
        if platform.machine() in {"x86_64", "AMD64"}:
            flags.append(0)
        fd = -1
        ctypes.set_errno(errno.ENOSYS)
        for each in flags:
            parameters[:] = 0
            parameters[2] = each
            address = ctypes.c_void_p(parameters.ctypes.data)
            fd = syscall(ctypes.c_long(SETUP), ctypes.c_long(entries), address)
            if fd >= 0:
                break
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.fd = fd
        try:
            self.arrays = self._mapped(parameters)
        except OSError:
            os.close(fd)
            raise

    def _mapped(self, parameters: NDArray[np.uint32]) -> RingArrays:
        """Map the memory that the ring shares.

        Raises:
            OSError: if the system forbids it.
        """
        asked, done = parameters[10:20], parameters[20:30]
        num_asked, num_done = int(parameters[0]), int(parameters[1])
        size = max(int(asked[6]) + 4 * num_asked, int(done[5]) + 16 * num_done)
        shared = mmap.mmap(self.fd, size, mmap.MAP_SHARED)
        entries = mmap.mmap(self.fd, 64 * num_asked, mmap.MAP_SHARED, offset=_ENTRIES_OFFSET)

        def at(offset: int, count: int = 1, dtype: type[Any] = np.uint32) -> NDArray[Any]:
            return np.frombuffer(shared, dtype, count, int(offset))

        return RingArrays(
            self.fd,
            int(at(asked[2])[0]),
            int(at(done[2])[0]),
            np.frombuffer(entries, np.uint64).reshape(-1, 8),
            at(asked[1]),
            at(asked[6], num_asked),
            at(done[0]),
            at(done[1]),
            at(done[5], 2 * num_done, np.uint64).reshape(-1, 2),
        )


class _Begun(NamedTuple):
    """Reads that nobody has waited for."""

    file: int
    extents: Extents
    asked: int
    """So many of the ring."""
    flying: int
    """And so many of them has the system."""
    shared: Shared | None
    """With threads."""
    whole: "Future[int] | None"
    """All of them through the ring, on another thread."""


class Transfers:
    """Reads and writes extents of files. One thread uses it at a time.

    Args:
        engine: ``auto`` takes a ring where the system allows it, else threads.
        may_begin: Whether ``begin`` is called: its reads may be waited for on another thread.
        threads: Of all that have them together; None for some of its own.

    Raises:
        OSError: if ``engine`` is ``ring`` and there can't be one.
    """

    def __init__(
        self,
        engine: Engine = "auto",
        *,
        may_begin: bool = False,
        threads: Threads | None = None,
    ) -> None:
        self.reason = ""
        """Why there is no ring, if it was wanted."""
        self._ring: _Ring | None = None
        self._may_begin = may_begin
        self._thread = threading.get_native_id()
        self._threads = Threads() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None
        self._begun: _Begun | None = None
        if engine != "threads":
            try:
                self._ring = _Ring(_ENTRIES, of_one_thread=not may_begin)
            except OSError as error:
                if engine == "ring":
                    raise
                self.reason = f"io_uring: {error.strerror}"

    @property
    def engine(self) -> str:
        """Return what is used: ``ring`` or ``threads``."""
        return "threads" if self._ring is None else "ring"

    @property
    def engine_of_others(self) -> Engine:
        """Return with what others for the same files are made: no ring where there was none."""
        return "threads" if self._ring is None else "auto"

    def run(
        self, file: int, offsets: NDArray[np.int64], sizes: NDArray[np.int64],
        addresses: NDArray[np.int64], *, write: bool = False,
    ) -> None:  # fmt: skip
        """Transfer extents, in any order.

        Args:
            file: Its descriptor.
            offsets: int64 [n], in the file.
            sizes: int64 [n], in bytes.
            addresses: int64 [n], in memory that stays.
            write: Whether to the file; else from it.

        Raises:
            OSError: if the system refuses, or the file ends before an extent does.
        """
        extents = Extents(offsets, sizes, addresses, np.zeros(offsets.size, np.uint8))
        if self._ring is None:
            self._by_threads(file, extents, write=write)
        else:
            self._by_ring(file, extents, write=write)
        for number in np.flatnonzero(extents.done == 0).tolist():
            _again(file, extents, number, write=write)

    def begin(
        self, file: int, offsets: NDArray[np.int64], sizes: NDArray[np.int64],
        addresses: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Begin to read extents, as ``run`` does; ``finish`` waits for them.

        Nothing else may be transferred by this object meanwhile.
        """
        assert self._may_begin
        assert self._begun is None, "one after the other"
        extents = Extents(offsets, sizes, addresses, np.zeros(offsets.size, np.uint8))
        asked, flying, shared, whole = 0, 0, None, None
        if self._ring is None:
            shared = self._share(file, extents, write=False)
        elif offsets.size <= _ENTRIES:
            asked = offsets.size
            flying = begin_by_ring(self._ring.arrays, file, extents)
        else:
            whole = self._through(self._ring, file, extents)
        self._begun = _Begun(file, extents, asked, flying, shared, whole)

    def _through(self, ring: _Ring, file: int, extents: Extents) -> "Future[int] | None":
        """Have a thread read extents through a ring; None if the system starts none."""
        if self._pool is None:
            self._pool = self._threads.get()
        try:
            return self._pool.submit(_read_by_ring, ring, file, extents)
        except RuntimeError:  # they are read when somebody waits for them
            return None

    def finish(self) -> None:
        """Wait for what was begun; pass if nothing was.

        Raises:
            OSError: if the system refuses, or the file ends before an extent does.
        """
        begun = self._wait()
        if begun is not None:
            is_begun = begun.asked or begun.shared is not None or begun.whole is not None
            if not is_begun and begun.extents.offsets.size:
                offsets, sizes, addresses, _ = begun.extents
                self.run(begun.file, offsets, sizes, addresses)
                return
            for number in np.flatnonzero(begun.extents.done == 0).tolist():
                _again(begun.file, begun.extents, number, write=False)

    def forget(self) -> None:
        """Wait for what was begun, and forget it; pass if nothing was."""
        self._wait()

    def _wait(self) -> _Begun | None:
        """Return what was begun, when nothing of it is under way any more."""
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        if begun.shared is not None:
            begun.shared.wait()
        if begun.whole is not None and begun.whole.result():
            self._leave_ring("io_uring: the ring broke")
        if begun.asked:
            assert self._ring is not None, "it was asked"
            broke = await_ring(self._ring.arrays, begun.extents, begun.flying)
            if broke or begun.flying < begun.asked:  # what it hasn't it must never read
                self._leave_ring("io_uring: the ring broke")
        return begun

    def close(self) -> None:
        """End what was made; idempotent."""
        self._wait()
        if self._ring is not None:
            os.close(self._ring.fd)
            self._ring = None
        self._pool = None

    def _by_ring(self, file: int, extents: Extents, *, write: bool) -> None:
        is_own = self._thread == threading.get_native_id()
        if not is_own and not self._may_begin:  # a ring is its thread's own
            self._leave_ring("")
            self._thread = threading.get_native_id()
            try:
                self._ring = _Ring(_ENTRIES, of_one_thread=True)
            except OSError as error:
                self.reason = f"io_uring: {error.strerror}"
        if self._ring is None:
            self._by_threads(file, extents, write=write)
        elif transfer_by_ring(self._ring.arrays, file, extents, DEPTH, write):
            self._leave_ring("io_uring: the ring broke")
            self._by_threads(file, extents, write=write)

    def _leave_ring(self, reason: str) -> None:
        assert self._ring is not None
        os.close(self._ring.fd)
        self._ring, self.reason = None, reason

    def _by_threads(self, file: int, extents: Extents, *, write: bool) -> None:
        if extents.offsets.size <= 1:
            transfer_in_turn(file, extents, 0, 1, write)
        else:
            self._share(file, extents, write=write).wait()

    def _share(self, file: int, extents: Extents, *, write: bool) -> Shared:
        """Have threads transfer extents."""
        if self._pool is None:
            self._pool = self._threads.get()
        shared = Shared(file, extents, write=write)
        shared.start(self._pool)
        return shared


def _read_by_ring(ring: _Ring, file: int, extents: Extents) -> int:
    """Read extents; return as ``transfer_by_ring`` does."""
    write = False
    return int(transfer_by_ring(ring.arrays, file, extents, DEPTH, write))


def _again(file: int, extents: Extents, number: int, *, write: bool) -> None:
    """Transfer one extent that wasn't transferred as a whole.

    Raises:
        OSError: if the system refuses, or the file ends before it.
    """
    offset, size = int(extents.offsets[number]), int(extents.sizes[number])
    memory = (ctypes.c_char * size).from_address(int(extents.addresses[number]))
    view, done = memoryview(memory).cast("B"), 0
    while done < size:
        part = [view[done:]]
        call = os.pwritev if write else os.preadv
        got = call(file, part, offset + done)
        if got <= 0:
            reason = f"the file ends at byte {offset + done:,}"
            raise OSError(errno.EIO, reason)
        done += got
