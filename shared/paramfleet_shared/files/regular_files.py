"""Files that others may have made are opened as regular files, or not at all.

Opening a pipe would wait for a writer. In a checkpoint or an export a link of a file's name
could lead out of the folder, too.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from paramfleet_shared.files.addresses import Address

__all__ = [
    "CREATE",
    "open_own",
    "open_regular",
    "read_regular",
    "replaced",
    "write_regular",
]

CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
"""A link of a file's name is never written through."""

_NEW = CREATE | os.O_EXCL
_OPEN = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | _NO_LINK

_OPEN_TRIES = 10
"""How often a name is looked at that others give to something else meanwhile."""


def open_regular(path: Path, *, may_be_link: bool = False) -> BufferedReader:
    """Open a regular file for reading; the folder it is in may be reached by links.

    Raises:
        OSError: if the system refuses.
        ValueError: if it is a link that it may not be, a pipe, or anything else than a
            regular file.
    """
    if not may_be_link and path.is_symlink():
        raise ValueError("is a link, which could lead out of the folder")
    descriptor = os.open(path, _OPEN if may_be_link else _OPEN | _NO_LINK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a folder is no file of Python's
        os.close(descriptor)
        raise ValueError("isn't a regular file")
    return os.fdopen(descriptor, "rb")


def open_own(
    path: Path, *, replace: bool = False, may_be_others: bool = False, mode: int = 0o600
) -> int:
    """Open a file of this user for appending, also in a folder that others may write to.

    What others may have put there is removed, never written to: a link, a file that has a
    second name, a pipe, a socket, a file of somebody else. A device such as ``/dev/null``,
    which only the system's owner makes, is written to.

    Args:
        path: The file; its folder is there.
        replace: Empty it; else what it has is kept.
        may_be_others: Take a file of somebody else, too, as on a share that gives every file
            to one user.
        mode: Of a new file, before the umask.

    Returns:
        Its descriptor, which doesn't pass on to other programs.

    Raises:
        OSError: if the system refuses, as it does to remove somebody else's file from a sticky
            folder, or it is a folder or a disk.
    """
    for _ in range(_OPEN_TRIES):
        try:
            descriptor = _opened_own(path, may_be_others=may_be_others)
        except FileNotFoundError:
            try:
                return os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:  # made by another meanwhile
                continue
        if descriptor is None:
            _remove(path)
            continue
        if replace and not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, 0)
        return descriptor
    raise OSError(errno.EBUSY, "others put something in its place again and again", str(path))


def _opened_own(path: Path, *, may_be_others: bool) -> int | None:
    """Return the descriptor of this user's file; None if something else has its name.

    Raises:
        OSError: if there is nothing, or the system refuses.
    """

    def is_own(found: os.stat_result) -> bool:
        if stat.S_ISCHR(found.st_mode):
            return True
        is_ours = may_be_others or found.st_uid == os.geteuid()
        return is_ours and found.st_nlink == 1 and stat.S_ISREG(found.st_mode)

    if not is_own(path.lstat()):  # opening it may do something already
        return None
    try:
        descriptor = os.open(path, _APPEND)
    except OSError:
        if is_own(path.lstat()):
            raise
        return None
    if is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    return None


def _remove(path: Path) -> None:
    """Remove what others may have put somewhere, and nothing else.

    Raises:
        IsADirectoryError: if it is a folder.
        OSError: if the system refuses, or it is a device.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat().st_mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISCHR(found) or stat.S_ISBLK(found):
            raise OSError(errno.EINVAL, "is a device", str(path))
        path.unlink()


def read_regular(path: Path, *, most_bytes: int, may_be_link: bool = False) -> bytes:
    """Return the content of a regular file, or so many bytes of its beginning.

    Raises:
        OSError: if the system refuses.
        ValueError: as ``open_regular``.
    """
    if isinstance(path, Address):
        with path.reading() as remote:
            return remote.read(most_bytes)
    with open_regular(path, may_be_link=may_be_link) as file:
        return file.read(most_bytes)


def write_regular(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file, and wait until it is on the disk; its folder is made if it is missing.

    Args:
        path: The file; replaced if it is there.
        content: What it has then.
        mode: Of a new file, before the umask.

    Raises:
        OSError: if the system refuses.
    """
    if isinstance(path, Address):
        with path.writing() as remote:
            remote.write(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, CREATE, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replaced(path: Path, *, mode: int = 0o666, syncs: bool = True) -> Iterator[IO[bytes]]:
    """Open a new file for writing, on the disk and of this name when the block has ended.

    Until then it has another name, which nobody can know before: what others put into the
    folder is never written to. If the block raises, what had the name still has it.

    Args:
        path: The name, of a local file; what has it is replaced, a link too.
        mode: Of the new file, before the umask.
        syncs: Whether it is to be on the disk; else other processes alone see it whole.

    Raises:
        OSError: if the system refuses.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    with os.fdopen(os.open(draft, _NEW, mode), "wb") as file:
        try:
            yield file
            file.flush()
            if syncs:
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
