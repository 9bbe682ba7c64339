"""Logs of a former launch: they are moved away, so that those of this one are alone."""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["PREVIOUS", "set_aside"]

PREVIOUS = "previous"
"""Folder below that of the logs, which has those of the launch before."""

_NAME = re.compile(
    r"(workerlog|serverlog|coordinatorlog|redislog)\.\d+|launcherlog\.([a-z]+-)?\d+"
)


def set_aside(folder: Path) -> None:
    """Move the logs of a former launch to ``previous``, and remove those that are there.

    Only files of this user that have the names of logs are touched. What can't be moved stays:
    a log that is written again is replaced anyhow.

    Args:
        folder: Of the logs; no launch writes there now.
    """
    with contextlib.suppress(OSError):
        former = list(_logs_in(folder))
        if not former:
            return
        previous = folder / PREVIOUS
        with contextlib.suppress(FileExistsError):
            previous.mkdir(mode=0o700)
        if not _is_own(previous, stat.S_ISDIR):
            return
        for each in _logs_in(previous):
            each.unlink()
        for each in former:
            each.replace(previous / each.name)


def _logs_in(folder: Path) -> Iterator[Path]:
    """Yield this user's logs.

    Raises:
        OSError: if the folder can't be read.
    """
    for each in list(folder.iterdir()):
        if _NAME.fullmatch(each.name) and _is_own(each, stat.S_ISREG):
            yield each


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a path is of a kind, itself and not by a link, and this user's."""
    there = path.lstat()
    return is_kind(there.st_mode) and there.st_uid == os.getuid()
