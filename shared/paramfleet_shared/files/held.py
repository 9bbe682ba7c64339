"""What one process holds by a lock, which the system ends with it, however it ends.

The lock's file says which process that is. A folder with one tells the next process whether it
may be removed.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import stat
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.errors import HeldError

__all__ = [
    "MOST_BYTES",
    "FolderKind",
    "ProcessFolder",
    "holder_in",
    "holder_of",
    "is_at",
    "own_name",
    "take_lock",
    "try_lock",
]

MOST_BYTES = 512
"""Of what a lock's file says."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_TRIES = 100

log = logging.getLogger(__name__)


def take_lock(lock: int, path: Path, refusal: type[HeldError]) -> None:
    """Lock an open file until it is closed, and write into it who holds it.

    Args:
        lock: Its descriptor.
        path: What it stands for, which a refusal names.
        refusal: Raised with what the file says.

    Raises:
        HeldError: the refusal, if another process has the lock.
        OSError: if the file system has no locks.
    """
    if not try_lock(lock):
        raise refusal(path=str(path), holder=holder_of(lock))


def try_lock(lock: int) -> bool:
    """Lock an open file, and write into it who holds it; return False if another one does.

    Args:
        lock: Its descriptor.

    Raises:
        OSError: if the file system has no locks.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(OSError):  # a full disk: nobody will be told who has it
        os.ftruncate(lock, 0)
        os.pwrite(lock, own_name(), 0)
    return True


def own_name() -> bytes:
    """Return what a lock's file says: this process, and its machine."""
    return f"{os.getpid()} on {socket.gethostname()}\n".encode()


def holder_of(lock: int) -> str:
    """Return which process an open file names; empty if none."""
    with contextlib.suppress(OSError):
        return holder_in(os.pread(lock, MOST_BYTES, 0))
    return ""


def holder_in(content: bytes) -> str:
    """Return which process the content of a lock's file names; empty if none."""
    said = content.decode("utf-8", "replace").strip()
    return said if said.isprintable() else ""


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still leads to what was opened."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


class FolderKind(NamedTuple):
    """Folders that go with their processes; those of other kinds are never touched."""

    prefix: str
    """Their names begin with it; 16 hexadecimal digits follow."""
    lock: str
    """The name of the file in each that is locked."""
    always_locked: bool
    """Whether none is used without a lock: one without the file was left by a process that was
    killed before it made it, and a file system without locks is refused. Else a folder without
    the file stays, and on a file system without locks those of killed processes do."""


class ProcessFolder:
    """A new folder that no other user can look into, removed with all that is in it at the end.

    Those of this user's processes that were killed are removed first.

    Args:
        parent: Where it is made; others may use it, too.
        kind: Which folders are of the same kind.

    Raises:
        OSError: if the system refuses.
    """

    def __init__(self, parent: Path, kind: FolderKind) -> None:
        _remove_left(parent, kind)
        self._lock: int | None
        self.path, self._lock = _made(parent, kind)

    def remove(self) -> None:
        """Remove the folder with all that is in it; may be called twice."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _made(parent: Path, kind: FolderKind) -> tuple[Path, int]:
    """Return a new folder and its lock.

    Before it is locked, who begins beside this process may take it for one that was left.

    Raises:
        OSError: if the system refuses.
    """
    for _ in range(_TRIES):
        path = parent / f"{kind.prefix}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            lock = os.open(path / kind.lock, _FLAGS | os.O_CREAT, 0o600)
            stack.callback(os.close, lock)
            if _is_taken(lock, needs_lock=kind.always_locked) and is_at(lock, path / kind.lock):
                stack.pop_all()
                return path, lock
    reason = "folders that are made here are removed at once: no folder could be kept"
    raise OSError(errno.EBUSY, reason, str(parent))


def _is_taken(lock: int, *, needs_lock: bool) -> bool:
    """Lock a new folder's file; return False if another process did.

    Raises:
        OSError: if there are no locks, and one is needed.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # without locks nobody removes it for another one
        if needs_lock:
            raise
    return True


def _remove_left(parent: Path, kind: FolderKind) -> None:
    """Remove the folders of processes that are gone; what can't be told or removed stays."""
    name = re.compile(re.escape(kind.prefix) + "[0-9a-f]{16}")
    with contextlib.suppress(OSError):
        for path in sorted(parent.iterdir()):
            if name.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(path, kind)


def _remove_if_left(path: Path, kind: FolderKind) -> None:
    """Remove a folder whose process has ended.

    Raises:
        OSError: if it has no lock, its process lives, or that can't be told.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    create = os.O_CREAT if kind.always_locked else 0
    lock = os.open(path / kind.lock, _FLAGS | create, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(lock).st_mode) and is_at(lock, path / kind.lock):
            shutil.rmtree(path, ignore_errors=True)
            log.info("files.folder_removed", extra={"folder": str(path)})
    finally:
        os.close(lock)
