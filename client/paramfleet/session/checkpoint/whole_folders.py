"""Folders that are whole or not there: written under another name, and renamed at the end.

At an address a folder has its final name from the beginning, as what other jobs and people
write there. So its writer marks it (``owned``), and only what has one's own mark is removed
before it is complete.
"""

import ctypes
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from paramfleet.session.checkpoint.replaceable import check_makes_way
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    CheckpointWriteError,
    new_identity,
    sync_directory,
)
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.folders import FolderNameError, FolderNotAllowedError
from paramfleet_shared.files.owned import Owner, claim, empty_owned, end_claim, is_owned
from paramfleet_shared.files.visibility import make_private

__all__ = [
    "Owner", "clear_own", "discard", "end_owning", "give_name", "held",
    "is_being_written", "naming", "own", "temporary_beside",
]  # fmt: skip

log = logging.getLogger(__name__)

_KEPT_S = 86_400.0
"""Seconds that what a killed save has left is kept after its last write: another process may
still be writing it, on another machine too."""

_QUIET_S = 600.0
"""Seconds after its last write during which a folder of checkpoints keeps an unfinished one,
which another job, or a compact, may be writing. Saves write all the time."""

_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
"""What systems answer that can't exchange names."""


def _renameat2_here() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


_renameat2 = _renameat2_here()
"""The C library's; None where it has none."""


def own(folder: Path, owner: Owner | None = None) -> Owner | None:
    """Mark an empty folder at an address, which is to be written; nothing for a local one.

    What the same run has left there half written makes way.

    Returns:
        The mark, of this save alone: only with it ``discard`` removes something there.

    Raises:
        FolderNameError: if the folder holds anything, or another save began there meanwhile.
        CheckpointWriteError: if the file system refuses.
    """
    if not isinstance(folder, Address):
        return None
    clear_own(folder, owner)
    check_makes_way(folder)
    mark = (owner or Owner("", 0))._replace(save=new_identity())
    try:
        if claim(folder, mark):
            return mark
    except OSError as error:
        raise CheckpointWriteError(path=str(folder), reason=str(error)) from error
    check_makes_way(folder)
    rule = "something else was written there at the same moment: save again"
    raise FolderNameError(path=str(folder), rule=rule)


def end_owning(folder: Path, mark: Owner | None) -> None:
    """Remove the mark of a folder that is complete; one that can't be removed does no harm."""
    if isinstance(folder, Address) and mark is not None:
        with suppress(OSError):
            end_claim(folder, mark)


def clear_own(folder: Path, owner: Owner | None) -> None:
    """Remove what a run has left half written in a folder at an address; failures are logged.

    Args:
        folder: The checkpoint's.
        owner: The run, which is writing nothing there; None removes nothing.
    """
    if not isinstance(folder, Address) or owner is None:
        return
    try:
        if is_owned(folder, owner) and not (folder / MANIFEST).exists():
            empty_owned(folder, owner)
    except OSError as error:
        _not_removed(folder, error)


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
        temporary = _temporary_name(final)
        if isinstance(error, CheckpointDamagedError) and not temporary.search(error.path):
            raise  # of a file that was there before
        reason = temporary.sub(lambda _: final.name, error.reason)
        raise type(error)(path=str(final), reason=reason) from None


def temporary_beside(final: Path) -> Path:
    """Return a name for what isn't complete yet, on the same file system."""
    if isinstance(final, Address):  # it is whole with its manifest, which comes last
        return final
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")


@contextmanager
def held(temporary: Path) -> Iterator[None]:
    """Make a local folder, and hold it while it is written, so that others don't clear it.

    For what may write nothing for long. The hold ends with this process at the latest.

    Raises:
        CheckpointWriteError: if the system refuses to make it.
    """
    if isinstance(temporary, Address):
        yield
        return
    try:
        make_private(temporary)
        lock = os.open(temporary, _FOLDER)
    except OSError as error:
        raise CheckpointWriteError(path=str(temporary), reason=str(error)) from error
    try:
        with suppress(OSError):  # a file system without locks: its last write counts
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def is_being_written(temporary: Path, *, by_others: bool = True) -> bool:
    """Return whether a local folder that isn't complete may still be written.

    It may while it is held, and for some time after its last write.

    Args:
        temporary: The folder.
        by_others: Whether another job's save may write it, which doesn't hold it.
    """
    try:
        lock = os.open(temporary, _FOLDER)
    except OSError:
        return True  # a link, or no folder: no save made it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        quiet_s = _QUIET_S
        if not by_others:
            return False
    except BlockingIOError:
        return True
    except OSError:  # its file system has no locks
        quiet_s = _KEPT_S
    finally:
        os.close(lock)
    try:
        with TemporaryFile(dir=temporary.parent) as now:  # as the file system counts time
            until = os.fstat(now.fileno()).st_mtime - quiet_s
        return not _is_older(temporary, until)
    except OSError:
        return True


def _is_older(folder: Path, until: float) -> bool:
    """Return whether nothing in a folder was written since.

    Raises:
        OSError: if the system refuses to look.
    """
    return all(path.lstat().st_mtime < until for path in (folder, *folder.iterdir()))


def discard(temporary: Path, mark: Owner | None = None) -> None:
    """Remove what isn't complete; whatever can't be removed stays.

    Args:
        temporary: The folder.
        mark: At an address, what ``own`` returned: without it, or where another one has
            taken its place, nothing is removed.
    """
    if not isinstance(temporary, Address):
        shutil.rmtree(temporary, ignore_errors=True)
        return
    if mark is None:
        return
    try:
        empty_owned(temporary, mark)
    except OSError as error:
        _not_removed(temporary, error)


def _not_removed(folder: Path, error: OSError) -> None:
    facts = {"folder": str(folder), "reason": str(error)}
    log.warning("worker.checkpoint_not_removed", extra=facts)


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
    if isinstance(final, Address):
        return
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
            if _is_older(folder, until):
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
