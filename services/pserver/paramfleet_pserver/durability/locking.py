"""A folder that one process has: a lock that ends with it, however it ends."""

import contextlib
import fcntl
import os
from pathlib import Path

from paramfleet_shared.errors.logs import LogInUseError
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
        self._file: int | None = os.open(path / name, _FLAGS, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._file)
            self.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise LogInUseError(path=str(path), holder=holder) from error
        with contextlib.suppress(OSError):  # a full disk: nobody will be told who has it
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def is_in(self, path: Path, name: str) -> bool:
        """Return whether the locked file is still that of the folder: neither was removed."""
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), (path / name).stat())
        except OSError:
            return False

    def close(self) -> None:
        """Let others have the folder; may be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


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
                raise LogInUseError(path=str(path), holder=_holder(file.fileno())) from error
            self._held = stack.pop_all()

    def close(self) -> None:
        """Let others have the folder; may be called twice."""
        self._held.close()


def _holder(lock: int) -> int:
    """Return the process id in a lock's file; 0 if there is none."""
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else 0
