"""A model folder belongs to one training: a lock that ends with its worker 0, however it ends.

Lists there are read, and then replaced as a whole, and the newest checkpoint is gone on from:
two trainings would lose each other's lines and go on from each other's models.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramfleet.runner.online.errors import ModelFolderInUseError
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.files.held import take_lock

__all__ = ["LOCK", "held_for_training"]

LOCK = ".training.lock"
"""The file that is locked; it stays, and says nothing once nobody holds it."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

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
        try:
            take_lock(lock, root, ModelFolderInUseError)
        except OSError as error:
            facts = {"folder": str(root), "reason": str(error)}
            remedy = "its file system has no locks: let no other training have this folder"
            log.warning("worker.model_folder_not_locked", extra={**facts, "remedy": remedy})
        yield
    finally:
        os.close(lock)
