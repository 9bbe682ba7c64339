"""One process at a time, for work that may take minutes: who waits knows for whom."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.files.held import holder_of, is_at, try_lock
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
        "{holder} is {doing}, and has made no progress for {waited_s:.0f} s: end it if it "
        "hangs, and try again (it holds {lock})"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A lock for one kind of work, and how long it is waited for."""

    lock: Path
    """A file, which says who holds it; it stays."""
    doing: str
    """What the holder does, as ``compiling``."""
    progress: Callable[[], int]
    """Returns a number that changes while the holder gets on."""
    told_after_s: float
    """Seconds until it is said for whom this waits."""
    stuck_after_s: float
    """Seconds without progress until the wait is given up."""
    advice: str = "end it if it hangs"
    """What else is said to who waits."""

    @contextlib.contextmanager
    def held(self, say: Callable[[str], object]) -> Iterator[None]:
        """Hold the lock, which ends with the process at latest; wait for whoever has it.

        Args:
            say: Is told, once, for whom this waits, and what to do.

        Raises:
            HeldTooLongError: if the wait is given up.
            OSError: if the file can't be opened, or there are no locks.
        """
        lock = self._taken(say)
        try:
            yield
        finally:
            os.close(lock)

    def _taken(self, say: Callable[[str], object]) -> int:
        """Return the locked file, when nobody else has it.

        Raises:
            HeldTooLongError: if the wait is given up.
            OSError: if the file can't be opened, or there are no locks.
        """
        clock, pause = SystemClock(), threading.Event()
        began = moved = clock.monotonic()
        seen, is_told = -1, False
        while True:
            lock, holder = self._tried()
            if lock is not None:
                return lock
            now = clock.monotonic()
            if (count := self.progress()) != seen:
                seen, moved = count, now
            if not is_told and now - began >= self.told_after_s:
                is_told = True
                say(f"waiting for {holder}, which is {self.doing}: {self.advice}")
            if now - moved >= self.stuck_after_s:
                raise HeldTooLongError(
                    lock=str(self.lock), holder=holder, doing=self.doing, waited_s=now - moved
                )
            pause.wait(_POLL_S)

    def _tried(self) -> tuple[int | None, str]:
        """Return the locked file, or else who has it.

        Raises:
            OSError: if the file can't be opened, or there are no locks.
        """
        with contextlib.ExitStack() as stack:
            lock = os.open(self.lock, _FLAGS, 0o600)
            stack.callback(os.close, lock)
            if try_lock(lock) and is_at(lock, self.lock):  # who cleans up may have removed it
                stack.pop_all()
                return lock, ""
            holder = holder_of(lock)
        return None, f"process {holder}" if holder else "another process"
