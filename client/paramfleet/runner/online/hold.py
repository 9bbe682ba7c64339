"""A model folder belongs to one training: a lock that ends with its worker 0, however it ends.

Lists there are read, and then replaced as a whole, and the newest checkpoint is gone on from:
two trainings would lose each other's lines and go on from each other's models.
"""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paramfleet.runner.online.errors import ModelFolderInUseError
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError

__all__ = ["LOCK", "held_for_training"]

LOCK = ".training.lock"
"""The file that is locked; it stays, and says nothing once nobody holds it."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_MOST_BYTES = 512
"""Of what a lock's file says."""

log = logging.getLogger(__name__)


@contextmanager
def held_for_training(root: Path) -> Iterator[None]:
    """Hold a model folder for a training, until the block or this process ends.

    Args:
        root: The folder; made if it is missing.

    Raises:
        ModelFolderInUseError: if another training holds it.
        CheckpointWriteError: if the system refuses the folder.
    """
    path = root / LOCK
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, _FLAGS | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise CheckpointWriteError(path=str(path), reason=str(error)) from error
    try:
        _take(lock, root)
        yield
    finally:
        os.close(lock)


def _take(lock: int, root: Path) -> None:
    """Lock a file, and write into it who holds it.

    Raises:
        ModelFolderInUseError: if another process does.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ModelFolderInUseError(path=str(root), holder=_holder(lock)) from error
    except OSError as error:
        facts = {"folder": str(root), "reason": str(error)}
        remedy = "its file system has no locks: let no other training have this folder"
        log.warning("worker.model_folder_not_locked", extra={**facts, "remedy": remedy})
        return
    with suppress(OSError):  # a full disk: nobody will be told who has it
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _holder(lock: int) -> str:
    """Return which process a lock's file names; empty if none."""
    with suppress(OSError):
        said = os.pread(lock, _MOST_BYTES, 0).decode("utf-8", "replace").strip()
        return said if said.isprintable() else ""
    return ""
