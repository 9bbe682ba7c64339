"""Many reads or writes of a file at once: through an io_uring, or one behind the other.

Kernels call the C library by the names of its functions, so what is compiled can be kept on
disk. No library for io_uring is needed: two system calls make a ring and use it.

n = extents of a call: ``offsets`` in the file, ``sizes`` in bytes, ``addresses`` in memory.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import inlined, kernel

__all__ = [
    "ENTER",
    "SETUP",
    "Extents",
    "RingArrays",
    "await_ring",
    "begin_by_ring",
    "transfer_by_ring",
    "transfer_in_turn",
]

SETUP, ENTER = 425, 426
"""Numbers of the system calls, the same on every processor."""

_READ, _WRITE = 22, 23
_WAITS = 1
"""The flag of ``ENTER`` with which it waits for completions."""
_TRIES = 1_000_000
"""So often a call that a signal has interrupted is repeated."""

_pread: Any = types.ExternalFunction(
    "pread", types.int64(types.int32, types.int64, types.int64, types.int64)
)
_pwrite: Any = types.ExternalFunction(
    "pwrite", types.int64(types.int32, types.int64, types.int64, types.int64)
)
_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


class Extents(NamedTuple):
    """Pieces of a file, and where they are in memory."""

    offsets: NDArray[np.int64]
    """[n]"""
    sizes: NDArray[np.int64]
    """[n], in bytes"""
    addresses: NDArray[np.int64]
    """[n]"""
    done: NDArray[np.uint8]
    """[n]: 1 where all of it was transferred."""


class RingArrays(NamedTuple):
    """The memory that a ring shares with the system."""

    fd: int
    mask: int
    cq_mask: int
    sqes: NDArray[np.uint64]
    """[entries, 8]: what is asked for."""
    sq_tail: NDArray[np.uint32]
    sq_array: NDArray[np.uint32]
    cq_head: NDArray[np.uint32]
    cq_tail: NDArray[np.uint32]
    cqes: NDArray[np.uint64]
    """[entries, 2]: what was done."""


@inlined
def _ask(ring: Any, file: Any, opcode: Any, extents: Any, number: Any) -> None:
    """Put an extent into the ring's queue."""
    tail = np.int64(ring.sq_tail[0])
    at = tail & ring.mask
    ring.sqes[at, 0] = np.uint64(opcode) | (np.uint64(file) << np.uint64(32))
    ring.sqes[at, 1] = np.uint64(extents.offsets[number])
    ring.sqes[at, 2] = np.uint64(extents.addresses[number])
    ring.sqes[at, 3] = np.uint64(extents.sizes[number])
    ring.sqes[at, 4] = np.uint64(number)
    ring.sqes[at, 5] = np.uint64(0)
    ring.sqes[at, 6] = np.uint64(0)
    ring.sqes[at, 7] = np.uint64(0)
    ring.sq_array[at] = np.uint32(at)
    ring.sq_tail[0] = np.uint32(tail + 1)


@inlined
def _take(ring: Any, extents: Any) -> Any:
    """Note what the system has done; return how many extents that were."""
    head, tail = np.int64(ring.cq_head[0]), np.int64(ring.cq_tail[0])
    num = 0
    while head != tail:
        entry = head & ring.cq_mask
        number = np.int64(ring.cqes[entry, 0])
        result = np.int64(np.int32(ring.cqes[entry, 1] & np.uint64(0xFFFFFFFF)))
        extents.done[number] = result == extents.sizes[number]
        num += 1
        head = (head + 1) & 0xFFFFFFFF
    ring.cq_head[0] = np.uint32(head)
    return num


@kernel
def transfer_by_ring(
    ring: RingArrays, file: int, extents: Extents, depth: int, is_write: Any
) -> int:
    """Transfer extents, ``depth`` at once; return 0, or -1 if the ring can't be used.

    Those that fail have ``done`` = 0. After -1 no extent is under way, but perhaps where the
    ring itself broke.
    """
    num = extents.offsets.size
    opcode = _WRITE if is_write else _READ
    following, queued, flying, tries = 0, 0, 0, 0
    while following < num or queued or flying:
        while following < num and queued + flying < depth:
            _ask(ring, file, opcode, extents, following)
            following += 1
            queued += 1
        least = max(1, min(queued + flying, depth // 4))
        got = _syscall(ENTER, ring.fd, queued, least, _WAITS, 0, 0)
        if got < 0:
            tries += 1
            if tries > _TRIES:
                return -1
        else:
            queued -= got
            flying += got
        flying -= _take(ring, extents)
    return 0


@kernel
def begin_by_ring(ring: RingArrays, file: int, extents: Extents) -> int:
    """Begin to read extents, all at once; return how many are under way.

    There must be room for them in the ring, and nothing may be under way.
    """
    num = extents.offsets.size
    for i in range(num):
        _ask(ring, file, _READ, extents, i)
    flying, tries = 0, 0
    while flying < num:
        got = _syscall(ENTER, ring.fd, num - flying, 0, 0, 0, 0)
        if got < 0:
            tries += 1
            if tries > _TRIES:
                return flying
        else:
            flying += got
    return flying


@kernel
def await_ring(ring: RingArrays, extents: Extents, flying: int) -> int:
    """Wait for what was begun; return 0, or -1 if the ring can't be used."""
    tries = 0
    while flying:
        if _syscall(ENTER, ring.fd, 0, flying, _WAITS, 0, 0) < 0:  # for all: it wakes once
            tries += 1
            if tries > _TRIES:
                return -1
        flying -= _take(ring, extents)
    return 0


@kernel
def transfer_in_turn(file: int, extents: Extents, first: int, step: int, is_write: Any) -> None:
    """Transfer every ``step``-th extent from ``first`` on; who fails has ``done`` = 0."""
    for i in range(first, extents.offsets.size, step):
        size = extents.sizes[i]
        if is_write:
            got = _pwrite(file, extents.addresses[i], size, extents.offsets[i])
        else:
            got = _pread(file, extents.addresses[i], size, extents.offsets[i])
        extents.done[i] = got == size
