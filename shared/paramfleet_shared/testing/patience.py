"""How late a busy machine may be, and when a wait has lasted too long."""

__all__ = ["LATE_S", "Patience"]

LATE_S = 20.0
"""Seconds that other work on the machine may add to a time that is promised.

Exact times are tested where time is an argument: in the cores. A test with real sockets or
processes asks only for less than what a broken promise would take, which is a hang.
"""


class Patience:
    """Decides when to give a wait up: after a time without progress, not after a total.

    Args:
        still_s: Seconds without progress.
        most_s: Seconds after which progress counts no more: it leads nowhere.
        now: When the wait begins.
    """

    def __init__(self, *, still_s: float, most_s: float, now: float) -> None:
        self._still_s = still_s
        self._ends_at = now + most_s
        self._began_at = self._moved_at = now
        self._progress: object = None

    def look(self, progress: object, *, now: float) -> str:
        """Return why the wait is over; empty while it goes on.

        Args:
            progress: Differs from the last one if there was progress; None if it is unknown.
            now: The time.
        """
        if progress is not None and progress != self._progress:
            self._progress, self._moved_at = progress, now
        if now >= self._ends_at:
            return f"waited {now - self._began_at:.0f} s, with progress that did not end"
        if now - self._moved_at > self._still_s:
            return f"waited {now - self._moved_at:.0f} s without progress"
        return ""
