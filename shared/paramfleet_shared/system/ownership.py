"""Whether another user could change what lies at a path, or put something else there.

What runs as this user, or keeps his secrets, is only as safe as each folder above it: who may
write to one of them can rename what is in it, and put something of his own in its place.
"""

import grp
import os
import pwd
import stat
from pathlib import Path

__all__ = ["reason_against"]

_MOST_LINKS = 40
"""As many as Linux itself follows."""


def reason_against(path: Path) -> str:
    """Return how another user could change or replace a path; empty if nobody can.

    Every level from ``/`` down is looked at, as the system walks them: also those that a
    symbolic link leads through. Each is root's or this user's, and nobody else may write to
    it. A folder above may be open if it is sticky, as ``/tmp`` is, where each removes and
    renames only what is his own. A group is nobody else if it is root's or this user's own
    and has no other members. What isn't there yet, or can't be seen, isn't judged.
    """
    root = Path("/")
    owners = {0, os.geteuid(), root.stat().st_uid}  # the last may replace anything
    pending = list(reversed(path.absolute().parts))
    at = root
    num_links = 0
    while pending:
        step = pending.pop()
        if step == "..":
            at = at.parent
            continue
        here = at / step  # ``/`` if the step is that
        try:
            found = here.lstat()
            target = here.readlink() if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return ""
        if reason := _reason_at(here, found, owners, is_last=not pending):
            return reason
        if target is None:
            at = here
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            return f"{here} leads through more than {_MOST_LINKS} links"
        pending += reversed(target.parts)
    return ""


def _reason_at(here: Path, found: os.stat_result, owners: set[int], *, is_last: bool) -> str:
    """Return what is wrong with one level; empty if nothing is."""
    if found.st_uid not in owners:
        return f"{here} is another user's (user {found.st_uid})"
    if stat.S_ISLNK(found.st_mode) or (found.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    ):
        return f"others may write to {here} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _is_own_group(group: int) -> bool:
    """Return whether a group is root's or this user's own, and no other user is in it."""
    user = os.geteuid()
    if group not in {0, user}:
        return False
    try:
        members = set(grp.getgrgid(group).gr_mem)
        return members <= {"root", pwd.getpwuid(user).pw_name}
    except KeyError:  # a container knows no names
        return True
