"""A folder that goes with its process, or with the next one where that was killed.

A lock in it tells whether its process lives: the system gives it up, however the process ends.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["OwnFolder"]

_PREFIX = "paramfleet-stream-"
_NAME = re.compile(_PREFIX + r"[a-z0-9_]{8}", re.ASCII)
_LOCK = "process.lock"
"""The file in it that is locked; a folder without one is no other process's."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_TRIES = 100

log = logging.getLogger(__name__)


class OwnFolder:
    """A new folder below another one, which no other user can look into.

    Those of processes that are gone are removed first.

    Args:
        parent: Where it is made.

    Raises:
        OSError: if the system refuses.
    """

    def __init__(self, parent: Path) -> None:
        _remove_dead(parent)
        self.path, self._lock = _made(parent)

    def remove(self) -> None:
        """Remove the folder with all that is in it; may be called twice."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _made(parent: Path) -> tuple[Path, int | None]:
    """Return a new folder and its lock.

    Raises:
        OSError: if the system refuses.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = os.open(path / _LOCK, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # who begins beside this one took it for a dead one's
            os.close(lock)
            continue
        except OSError:  # a file system without locks: nobody removes it for another one
            pass
        if _is_at(lock, path / _LOCK):
            return path, lock
        os.close(lock)
    reason = "folders that are made here are removed at once"
    raise OSError(errno.EBUSY, reason, str(parent))


def _remove_dead(parent: Path) -> None:
    """Remove the folders of processes that are gone; what can't be told or removed stays."""
    with suppress(OSError):
        for path in sorted(parent.iterdir()):
            if _NAME.fullmatch(path.name):
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        lock = os.open(path / _LOCK, _FLAGS)
    except OSError:  # it has none, or is removed just now
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process lives, or that can't be told
        return
    else:
        if _is_at(lock, path / _LOCK):
            shutil.rmtree(path, ignore_errors=True)
            log.info("serving.folder_removed", extra={"folder": str(path)})
    finally:
        os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path leads to a regular file that was opened."""
    with suppress(OSError):
        opened = os.fstat(descriptor)
        return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, path.lstat())
    return False
