"""Who else on this machine may look at a file."""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

from paramfleet_shared.files.addresses import Address

__all__ = [
    "is_hidden",
    "make_private",
    "open_mode",
    "others_bits",
    "private_mode",
    "user_of",
]


def make_private(folder: Path) -> None:
    """Make a folder that only this user may look into, unless it is there.

    Folders above it are made as usual. If the one above gives its group to what is made in it
    (the set-group-ID bit), that group gets its rights in the new folder, too, before the umask.

    Raises:
        OSError: if the system refuses.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(folder, Address):
        return
    folder.mkdir(mode=0o700 | _shared_bits(folder.parent), exist_ok=True)


def private_mode(file: Path) -> int:
    """Return the mode of a new file in a folder that ``make_private`` has made.

    Raises:
        OSError: if the system refuses to look at the folder.
    """
    return 0o600 if isinstance(file, Address) else 0o600 | _shared_bits(file.parent) & 0o060


def _shared_bits(folder: Path) -> int:
    """Return the group's bits of a folder's mode, if the folder gives its group on."""
    mode = folder.stat().st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0


def open_mode(path: Path) -> int | None:
    """Return the mode of a file of this user's that others may read; None if it isn't so.

    A file that no user may write, or on a file system that is mounted read-only, as
    containers get their secrets, is None: its owner can't do anything about it.
    """
    try:
        fact = path.stat()
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return None
    mode = stat.S_IMODE(fact.st_mode)
    is_ours = fact.st_uid == os.geteuid() and bool(mode & stat.S_IWUSR) and not is_read_only
    is_open = bool(mode & others_bits(fact.st_gid) & 0o044) and not is_hidden(path)
    return mode if is_ours and is_open else None


def others_bits(gid: int) -> int:
    """Return the bits of a mode that are of others than this user.

    Args:
        gid: Group of the file; it is no other where it is this user's alone, as many systems
            make one for each user.
    """
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(gid)
        if not group.gr_mem and group.gr_name == user_of(os.geteuid()):
            return 0o007
    return 0o077


def is_hidden(path: Path) -> bool:
    """Return whether a folder above it keeps others out."""
    with contextlib.suppress(OSError):
        for folder in path.absolute().parents:
            if not folder.stat().st_mode & 0o011:
                return True
    return False


def user_of(uid: int) -> str:
    """Return a user's name, or number where it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"
