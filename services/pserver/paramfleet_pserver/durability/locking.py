"""A folder that one process has: a lock that ends with it, however it ends."""

import contextlib
import fcntl
import os
from pathlib import Path

from paramfleet_shared.errors.logs import LogInUseError
from paramfleet_shared.files.held import holder_of, take_lock
from paramfleet_shared.files.regular_files import open_regular

__all__ = ["ExistingLock", "FolderLock"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class FolderLock:
    """A lock on a folder, until ``close`` or the end of this process.

    It passes on to a process that is forked from this one.

    Args:
        path: The folder; made if it is missing.
        name: Of the file in it that is locked.

    Raises:
        LogInUseError: if somebody else has it.
        OSError: if the system refuses.
    """

    def __init__(self, path: Path, name: str) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            file = os.open(path / name, _FLAGS, 0o600)
            stack.callback(os.close, file)
            take_lock(file, path, LogInUseError)
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let others have the folder; may be called twice."""
        self._held.close()


class ExistingLock:
    """A lock on a folder that a pserver made, until ``close``; nothing is made or written.

    Args:
        path: The folder.
        name: Of the file in it that is locked.

    Raises:
        LogInUseError: if somebody else has it.
        OSError: if the system refuses, or there is no such file.
        ValueError: if it isn't a regular file.
    """

    def __init__(self, path: Path, name: str) -> None:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_regular(path / name))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LogInUseError(path=str(path), holder=holder_of(file.fileno())) from error
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let others have the folder; may be called twice."""
        self._held.close()
