"""What the log asks of a disk; tests put one below that fails or loses power when told."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from paramfleet_pserver.durability.log.core.batching import Buffer

__all__ = ["Disk", "is_full"]

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_MAX_PARTS = 1024
"""Of one system call: Linux's IOV_MAX."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Return whether a disk, a quota or the process's limit has no room left."""
    return error.errno in _FULL


class Disk:
    """The calls of the system by which a log is written; each may block.

    All of them raise ``OSError`` if the system refuses.
    """

    def create(self, path: Path, num_bytes: int) -> int:
        """Make a file of so many zero bytes, for which the disk has room; return it open.

        Raises:
            OSError: if the system refuses; then there is no such file.
        """
        file = os.open(path, _CREATE, 0o600)
        try:
            os.posix_fallocate(file, 0, num_bytes)
        except BaseException:
            os.close(file)
            path.unlink()
            raise
        return file

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts, one behind the other, from an offset on."""
        left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        while left:
            written = os.pwritev(file, left[:_MAX_PARTS], offset)
            offset += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def sync(self, file: int) -> None:
        """Wait until what was written to a file is on the disk."""
        os.fdatasync(file)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def mark(self, path: Path) -> None:
        """Have an empty file, and wait until that is on the disk."""
        path.touch(mode=0o600)
        self._sync_folder(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name in its folder, and wait until that is on the disk."""
        path.rename(target)
        self._sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there, and wait until that is on the disk."""
        path.unlink(missing_ok=True)
        self._sync_folder(path.parent)

    def _sync_folder(self, path: Path) -> None:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
