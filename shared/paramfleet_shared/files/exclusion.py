"""One process at a time, for work that may take minutes: who waits knows for whom."""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.system.clock import SystemClock

__all__ = ["Exclusion", "HeldTooLongError"]

_POLL_S = 0.1

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class HeldTooLongError(UnavailableError):
    """Another process has a lock, and gets no further."""

    code = "unavailable.held_too_long"
    lock: str
    holder: str
    doing: str
    waited_s: float
    sentence = (
        "{holder} is {doing}, and has got no further for {waited_s:.0f} s: end it if it hangs, "
        "and try again (it holds {lock})"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A lock for one kind of work, and how long it is waited for."""

    lock: Path
    """A file, which gets the holder's process id."""
    doing: str
    """What the holder does, as ``compiling``."""
    progress: Callable[[], int]
    """Returns a number that changes while the holder gets on."""
    told_after_s: float
    """Seconds until it is said for whom this waits."""
    stuck_after_s: float
    """Seconds without progress until the wait is given up."""

    @contextlib.contextmanager
    def held(self, say: Callable[[str], object]) -> Iterator[None]:
        """Hold the lock, which ends with the process at latest; wait for whoever has it.

        Args:
            say: Is told, once, for whom this waits.

        Raises:
            HeldTooLongError: if the wait is given up.
            OSError: if the file can't be opened.
        """
        with os.fdopen(os.open(self.lock, _FLAGS, 0o600), "r+") as file:
            self._wait(file, say)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def _wait(self, file: TextIO, say: Callable[[str], object]) -> None:
        """Wait for the lock.

        Raises:
            HeldTooLongError: if that is given up.
        """
        clock, pause = SystemClock(), threading.Event()
        began = moved = clock.monotonic()
        seen, is_told = -1, False
        while not _is_taken(file):
            now = clock.monotonic()
            if (count := self.progress()) != seen:
                seen, moved = count, now
            if not is_told and now - began >= self.told_after_s:
                is_told = True
                say(f"waiting for {self._holder()}, which is {self.doing}")
            if now - moved >= self.stuck_after_s:
                raise HeldTooLongError(
                    lock=str(self.lock),
                    holder=self._holder(),
                    doing=self.doing,
                    waited_s=now - moved,
                )
            pause.wait(_POLL_S)

    def _holder(self) -> str:
        """Return who has the lock, as far as it is known."""
        written = self.lock.read_text("utf-8", errors="replace")
        return f"process {written}" if written.isdecimal() else "another process"


def _is_taken(file: TextIO) -> bool:
    """Take the lock of a file, if nobody has it; return whether that was so."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
