"""The log of one process: made again when it is gone, and never a reason to stop a job."""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from paramfleet_shared.files.regular_files import open_own

__all__ = ["LogFile"]

TAIL_BYTES = 1 << 16
"""So much of its end is in memory too: why a process died must be known without the file."""


class LogFile:
    """A file that gets everything a process writes.

    Before each write it is looked whether the file is still there: one that was removed, or
    moved as a rotation does, is made again. What can't be written, as on a full disk, is left
    out and counted. Others may write to its folder: what isn't this user's own file is never
    written to, but replaced (``open_own``). What truncates the file by copying it leaves its
    place to us, because each write appends.

    Args:
        path: The file.
        say: Called with a line for people when writing begins to fail, and when it works again.
        append: Keep what an old one has, of a process that is started again; else it is
            replaced.

    Raises:
        OSError: if the file can't be made, or what has its name can't be removed; where
            ``append`` is given that is only told, because a job runs.
    """

    def __init__(self, path: Path, say: Callable[[str], None], *, append: bool = False) -> None:
        self.path = path
        self._say = say
        self._descriptor: int | None = None
        self._left_out = 0
        self._fails = False
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        try:
            self._descriptor = open_own(path, replace=not append)
        except OSError as error:
            if not append:
                raise
            self._note_failure(error)

    def write(self, data: bytes) -> None:
        """Append; never fails."""
        self._remember(data)
        written = 0
        try:
            written = self._append(data)
        except OSError as error:
            self._left_out += len(data) - written
            self._note_failure(error)
            return
        if written < len(data):  # a disk may take a part of it
            self._left_out += len(data) - written
        elif self._fails:
            self._fails = False
            self._say(f"{self.path} is written again; it lacks {self._left_out} bytes")

    def last_lines(self, num_lines: int) -> list[str]:
        """Return the last lines that were to be written."""
        lines = b"".join(self._tail)[-TAIL_BYTES:].decode(errors="replace").splitlines()
        return lines[-num_lines:]

    def close(self) -> None:
        """Write no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _note_failure(self, error: OSError) -> None:
        if not self._fails:
            self._fails = True
            self._say(f"{self.path} can't be written; the job continues: {error.strerror}")

    def _append(self, data: bytes) -> int:
        """Write to the file of this name; return how many bytes it took."""
        if self._descriptor is None or not _is_at(self._descriptor, self.path):
            self.close()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_own(self.path)
        return os.write(self._descriptor, data)

    def _remember(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still names an open file, itself and not by a link."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
