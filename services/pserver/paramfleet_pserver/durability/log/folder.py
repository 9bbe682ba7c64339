"""The folder of a log: its lock, the names of its files, and which of them there are.

Files with other names are somebody else's: they are neither read nor removed.
"""

import re
import stat
from pathlib import Path
from typing import NamedTuple

from paramfleet_pserver.durability.locking import FolderLock
from paramfleet_pserver.durability.log.core.layout import MAX_SEGMENT_BYTES
from paramfleet_shared.files.regular_files import read_regular

__all__ = ["LogFolder", "SegmentFile"]

_SEGMENT = re.compile(r"segment-(\d{16})\.log")
_DRAFT = re.compile(r"segment-\d{16}\.draft")
_LOCK_NAME = "log.lock"
_BEGUN_NAME = "log.begun"
"""A file that says that there has been a segment, so that one is always to be found."""


class SegmentFile(NamedTuple):
    """What has the name of a segment."""

    number: int
    path: Path

    def content(self, most_bytes: int = MAX_SEGMENT_BYTES) -> bytes:
        """Return its bytes, or so many of its beginning.

        Raises:
            OSError: if the system refuses.
            ValueError: if it isn't a regular file.
        """
        return read_regular(self.path, most_bytes=most_bytes)


class LogFolder:
    """A folder that this process alone uses, until ``close`` or its end.

    The lock passes on to a process that is forked from this one.

    Args:
        path: The folder; made if it is missing.

    Raises:
        LogInUseError: if somebody else has it.
        OSError: if the system refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path, _LOCK_NAME)

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()

    def segment(self, number: int) -> Path:
        """Return the name of a segment."""
        return self.path / f"segment-{number:016d}.log"

    def draft(self, number: int) -> Path:
        """Return the name of a segment that is being made."""
        return self.path / f"segment-{number:016d}.draft"

    @property
    def begun(self) -> Path:
        """Return the file that is there once there has been a segment."""
        return self.path / _BEGUN_NAME

    def segments(self) -> list[SegmentFile]:
        """Return what has the name of a segment, in order; it may be no regular file.

        Raises:
            OSError: if the system refuses.
        """
        names = ((_SEGMENT.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted(SegmentFile(int(name[1]), path) for name, path in names if name)

    def highest_number(self) -> int:
        """Return the greatest number that any name has, be it a file or not; 0 if none has.

        Raises:
            OSError: if the system refuses.
        """
        names = (_SEGMENT.fullmatch(path.name) for path in self.path.iterdir())
        return max((int(name[1]) for name in names if name), default=0)

    def remove_drafts(self) -> None:
        """Remove what a process that was killed was about to make.

        Raises:
            OSError: if the system refuses.
        """
        for path in self.path.iterdir():
            if _DRAFT.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
