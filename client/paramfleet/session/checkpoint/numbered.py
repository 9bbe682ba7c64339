"""Checkpoints in one folder, numbered: the newest, the link to it, and which ones go.

Each has a folder of its own, ``<number>-step-<step>``, which is complete or absent; numbers
continue over restarts, so the newest is the one with the highest, and ``latest`` is a link to
it. Older ones than are kept are removed when a newer one is complete.
"""

import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from paramfleet.session.checkpoint.replaceable import check_makes_way
from paramfleet.session.checkpoint.whole_folders import temporary_beside
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.files.folders import FolderNameError

__all__ = ["begin_numbered", "clear_left", "end_numbered", "newest_in"]

LATEST = "latest"

_NAME = re.compile(r"(\d{6,})-step-\d+")
_LEFT = re.compile(r"\.\d{6,}-step-\d+\.[0-9a-f]{8}\.partial")

log = logging.getLogger(__name__)


def begin_numbered(folder: Path, *, step: int) -> Path:
    """Return the absolute name of the next checkpoint in a folder.

    Args:
        folder: Has the checkpoints; it may be absent.
        step: After how many steps it is.
    """
    folder = folder.absolute()
    number = max(_numbered(folder), default=0) + 1
    return folder / f"{number:06d}-step-{step}"


def end_numbered(checkpoint: Path, *, keep: int) -> None:
    """Point to a new checkpoint, and remove old ones; failures are logged.

    None is removed that ``latest`` might still point to.

    Args:
        checkpoint: The new one.
        keep: How many of the newest stay.
    """
    folder = checkpoint.parent
    try:
        pointer = folder / f".{LATEST}.{secrets.token_hex(4)}"
        pointer.symlink_to(checkpoint.name, target_is_directory=True)
        try:
            pointer.replace(folder / LATEST)
        finally:
            pointer.unlink(missing_ok=True)
    except OSError as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_pointer_failed", extra=facts)
        return
    numbered = _numbered(folder)
    for number in sorted(numbered)[:-keep]:
        _remove(numbered[number])


def newest_in(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder; None if there is none."""
    numbered = _numbered(folder.absolute())
    return numbered[max(numbered)] if numbered else None


def clear_left(folder: Path) -> None:
    """Remove what a former run left half written or half removed."""
    for path in _listed(folder):
        if _LEFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; from the beginning on it has no checkpoint's name any more.

    One that holds anything else stays.
    """
    former = temporary_beside(folder)
    try:
        check_makes_way(folder)
        folder.rename(former)
        shutil.rmtree(former)
    except (FolderNameError, CheckpointWriteError, OSError) as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_not_removed", extra=facts)


def _numbered(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their numbers."""
    found = {}
    for path in _listed(folder):
        name = _NAME.fullmatch(path.name)
        if name is not None:
            found[int(name[1])] = path
    return found


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it isn't there, or can't be read."""
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - raises at once
    except OSError:
        return []
