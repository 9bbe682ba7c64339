"""What a stream asks of a file system; tests put one below that fails when told.

On a disk a file is written beside under another name, synced, and renamed; then its folder is
synced. At an address a put is atomic, as object stores have it.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import IO

from paramfleet_shared.deltas.errors import StreamBusyError, StreamError
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.regular_files import replaced
from paramfleet_shared.system.clock import Clock

__all__ = ["LOCK_WAIT_S", "StreamDisk", "opened_lock"]

LOCK_WAIT_S = 10.0
"""How long a writer waits for another process that publishes."""

_LOOK_S = 0.005

_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_MODE = 0o600
"""Who can open a lock's file can hold it."""


class StreamDisk:
    """Files that are there wholly or not at all; each call may block.

    All of them raise ``OSError`` if the system refuses.

    Args:
        syncs: Whether what is written outlives the machine; a stream that goes with a process
            needs none of that.
    """

    def __init__(self, *, syncs: bool = True) -> None:
        self._syncs = syncs

    @contextmanager
    def creating(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a new file, which has its name, on the disk, when the block has ended.

        What had the name has it until then. The folder is made if it is missing.

        Raises:
            OSError: if the system refuses.
        """
        if isinstance(path, Address):
            with path.writing() as remote:
                yield remote
            return
        self.make_folder(path.parent)
        with replaced(path, syncs=self._syncs) as file:
            yield file
        self._sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there.

        Raises:
            OSError: if the system refuses.
        """
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder if nothing is in it.

        Raises:
            OSError: if the system refuses to list it.
        """
        if isinstance(path, Address):
            path.remove_if_empty()
            return
        with suppress(OSError):  # somebody else's files are in it: they stay
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """Return the names of what is in a folder, sorted; none if it is missing or a link.

        Raises:
            OSError: if the system refuses.
        """
        try:
            return [] if path.is_symlink() else sorted(each.name for each in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def locked(self, path: Path, clock: Clock) -> Iterator[None]:
        """Keep other processes out for the block, where the file is on a disk.

        Args:
            path: The lock's file; it is made, and stays.
            clock: The time by which the wait is bounded.

        Raises:
            StreamBusyError: if another process is in such a block for long.
            StreamError: if something else than the lock's file has its name.
            OSError: if the system refuses.
        """
        if isinstance(path, Address):  # which has no locks: two writers see each other later
            yield
            return
        self.make_folder(path.parent)
        descriptor = opened_lock(path)
        try:
            self._wait_for_lock(descriptor, path, clock)
            yield
        finally:
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int, path: Path, clock: Clock) -> None:
        begin, never = clock.monotonic(), Event()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited_s = clock.monotonic() - begin
                if waited_s >= LOCK_WAIT_S:
                    raise StreamBusyError(path=str(path), waited_s=waited_s) from None
                never.wait(_LOOK_S)
            else:
                return

    def make_folder(self, path: Path) -> None:
        """Make a folder and those it is in, on the disk when this returns.

        Raises:
            OSError: if the system refuses.
        """
        if path.is_dir() or isinstance(path, Address):
            return
        self.make_folder(path.parent)
        path.mkdir(exist_ok=True)
        self._sync_folder(path.parent)

    def _sync_folder(self, path: Path) -> None:
        if not self._syncs:
            return
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def opened_lock(path: Path) -> int:
    """Open a lock's file, which is made if it is missing; nothing is written to it.

    Raises:
        StreamError: if something else has its name: a link, a pipe, a file with a second name,
            or one of another user than this and the folder's.
        OSError: if the system refuses.
    """
    owners = {os.geteuid(), path.parent.stat().st_uid}

    def is_own(found: os.stat_result) -> bool:
        return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in owners

    rule = (
        "isn't a lock file of a writer, but a link, a pipe or a file of another user: remove it"
    )
    with suppress(FileNotFoundError):
        if not is_own(path.lstat()):  # opening it may do something already
            raise StreamError(path=str(path), rule=rule)
    try:
        descriptor = os.open(path, _OPEN_LOCK, _OWN_MODE)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise StreamError(path=str(path), rule=rule) from error
        raise
    found = os.fstat(descriptor)
    if not is_own(found):
        os.close(descriptor)
        raise StreamError(path=str(path), rule=rule)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _OWN_MODE:
        os.fchmod(descriptor, _OWN_MODE)  # as versions before made it
    return descriptor
