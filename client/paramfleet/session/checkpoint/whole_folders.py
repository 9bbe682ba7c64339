"""Folders that are whole or not there: written under another name, and renamed at the end."""

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paramfleet.session.checkpoint.replaceable import check_makes_way
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    sync_directory,
)
from paramfleet_shared.files.folders import FolderNotAllowedError

__all__ = ["give_name", "naming", "temporary_beside"]

_KEPT_S = 86_400.0
"""Seconds that what a killed save has left is kept after its last write: another process may
still be writing it, on another machine too."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
"""What systems answer that can't exchange names."""


def _renameat2_here() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


_renameat2 = _renameat2_here()
"""The C library's; None where it has none."""


@contextmanager
def naming(final: Path) -> Iterator[None]:
    """Let an error name the folder that was asked for, not the temporary one beside it.

    Raises:
        FolderNotAllowedError: as the body did.
        CheckpointWriteError: the same.
        CheckpointDamagedError: the same.
    """
    try:
        yield
    except FolderNotAllowedError as error:
        raise FolderNotAllowedError(path=str(final), allowed=error.allowed) from None
    except (CheckpointWriteError, CheckpointDamagedError) as error:
        reason = _temporary_name(final).sub(lambda _: final.name, error.reason)
        raise type(error)(path=str(final), reason=reason) from None


def temporary_beside(final: Path) -> Path:
    """Return a name for what isn't complete yet, on the same file system."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")


def give_name(temporary: Path, final: Path) -> None:
    """Give a complete folder its name; a former one of that name is replaced.

    Where the system can exchange two names, the name is at no moment without a folder.

    Args:
        temporary: The complete folder: an absolute path.
        final: Its name: an absolute path.

    Raises:
        FolderNameError: if what has the name must stay; nothing is changed.
        CheckpointWriteError: if the system refuses; nothing is changed.
    """
    check_makes_way(final)
    former = temporary_beside(final)
    try:
        if not final.exists():
            temporary.rename(final)
        elif _exchanged(temporary, final):
            former = temporary
        else:
            _replace(temporary, final, former)
        sync_directory(final.parent)
    except OSError as error:
        raise CheckpointWriteError(path=str(final), reason=str(error)) from error
    shutil.rmtree(former, ignore_errors=True)
    _clear_left(final)


def _temporary_name(final: Path) -> re.Pattern[str]:
    """Return what matches the names that ``temporary_beside`` makes of this one."""
    return re.compile(re.escape(f".{final.name}.") + r"[0-9a-f]{8}\.partial")


def _clear_left(final: Path) -> None:
    """Remove what killed saves of this name have left, a day after their last write.

    The new folder says what time it is, as the file system counts it.
    """
    left = _temporary_name(final)
    try:
        until = final.stat().st_mtime - _KEPT_S
        with os.scandir(final.parent) as entries:
            folders = [
                Path(entry.path)
                for entry in entries
                if left.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
        for folder in folders:
            if all(path.lstat().st_mtime < until for path in (folder, *folder.iterdir())):
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # the next save looks again


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders; return False if the system can't.

    Raises:
        OSError: if it refuses.
    """
    if _renameat2 is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _replace(temporary: Path, final: Path, former: Path) -> None:
    """Give a folder the name of another, which gets the name ``former``.

    Raises:
        OSError: if the system refuses; the names are as they were.
    """
    final.rename(former)
    try:
        temporary.rename(final)
    except OSError:
        former.rename(final)
        raise
