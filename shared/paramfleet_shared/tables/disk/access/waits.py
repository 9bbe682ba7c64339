"""Until when something may take."""

from pathlib import Path

from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.disk.errors import TierLateError

__all__ = ["Deadline"]


class Deadline:
    """A time after which a read gives up.

    Args:
        clock: What tells the time.
        limit_s: Seconds from now on.
        folder: Named by the error.
    """

    def __init__(self, clock: Clock, limit_s: float, folder: Path) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._folder = folder
        self._ends = clock.monotonic() + limit_s

    def check(self, num_keys: int) -> None:
        """Pass if it isn't over.

        Args:
            num_keys: Of the whole call, for the error.

        Raises:
            TierLateError: if it is.
        """
        if self._clock.monotonic() > self._ends:
            raise TierLateError(
                path=str(self._folder), num_keys=num_keys, limit_s=self._limit_s
            )
