"""The calls of the system that a tier makes, and what their refusals mean."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.errors import (
    TierFailedError,
    TierFolderError,
    TierFullError,
    TierInUseError,
)

__all__ = ["Buffer", "ScratchSystem", "System", "lock_folder", "open_error", "write_error"]

Buffer = bytes | memoryview

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE}
"""A disk, a user's share of it, or a list of open files is full: there may be room later."""
_NO_WAY = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
_DIRECT = getattr(os, "O_DIRECT", 0)
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
"""A link in its place isn't followed: who can write to a folder above may have put it there."""


def write_error(path: Path, error: OSError, *, is_whole: bool) -> FleetError:
    """Return the error of a refused write.

    Args:
        path: What was written.
        error: What the system said.
        is_whole: Whether all that was acknowledged is there as if the write hadn't been tried.
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    if is_whole and error.errno in _NO_ROOM:
        return TierFullError(path=str(path), reason=reason)
    return TierFailedError(path=str(path), reason=reason)


def open_error(folder: Path, error: OSError) -> FleetError:
    """Return the error of a folder that can't be opened; nothing was changed."""
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return TierFullError(path=str(folder), reason=reason)
    return TierFolderError(path=str(folder), reason=reason)


def lock_folder(folder: Path) -> int:
    """Make a folder, and hold it for this process; return the lock's descriptor.

    Raises:
        TierInUseError: if another one holds it.
        TierFolderError: if it can't be made or written.
        TierFullError: if there is no room for it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", _OPEN, 0o600)
    except OSError as error:
        failure = open_error(folder, error)
        raise failure from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise TierInUseError(path=str(folder)) from error
    return lock


class System:
    """What the system does with files; a test's may refuse."""

    survives = True
    """Whether what was acknowledged must be there after a crash."""

    def open(self, path: Path, *, direct: bool) -> tuple[int, bool]:
        """Open a file for reading and writing, make it if need be.

        Returns:
            Its descriptor, and whether it bypasses the page cache.

        Raises:
            OSError: if the system refuses.
        """
        if direct and _DIRECT:
            try:
                return os.open(path, _OPEN | _DIRECT, 0o600), True
            except OSError as error:
                if error.errno not in _NO_WAY:
                    raise
        file = os.open(path, _OPEN, 0o600)
        if direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file, False

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts, one behind the other.

        Raises:
            OSError: if the system refuses.
        """
        left = [memoryview(part).cast("B") for part in parts]
        while left:
            done = os.pwritev(file, left, offset)
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]

    def write_extents(
        self,
        transfers: Transfers,
        file: int,
        extents: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Write many pieces at once; ``extents`` = offsets, sizes, addresses.

        Raises:
            OSError: if the system refuses.
        """
        transfers.run(file, *extents, write=True)

    def claim(self, file: int, num_bytes: int) -> None:
        """Make sure that a file may be written up to a size.

        Raises:
            OSError: if there is no room.
        """
        have = os.fstat(file).st_size
        if num_bytes > have:
            try:
                os.posix_fallocate(file, have, num_bytes - have)
            except OSError as error:
                if error.errno not in _NO_WAY:
                    raise
                os.ftruncate(file, num_bytes)

    def sync(self, file: int) -> None:
        """Wait until what was written is on the disk.

        Raises:
            OSError: if the system refuses.
        """
        os.fdatasync(file)

    def truncate(self, file: int, num_bytes: int) -> None:
        """Cut a file off.

        Raises:
            OSError: if the system refuses.
        """
        os.ftruncate(file, num_bytes)

    def remove(self, path: Path) -> None:
        """Remove a file for good.

        Raises:
            OSError: if the system refuses.
        """
        path.unlink(missing_ok=True)
        self.sync_folder(path.parent)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on the disk; some file systems need no such.

        Raises:
            OSError: if the system refuses.
        """
        file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fsync(file)
        finally:
            os.close(file)


class ScratchSystem(System):
    """For files that nobody opens again: nothing waits for the disk."""

    survives = False

    @override
    def sync(self, file: int) -> None:
        """Do nothing."""

    @override
    def sync_folder(self, folder: Path) -> None:
        """Do nothing."""
