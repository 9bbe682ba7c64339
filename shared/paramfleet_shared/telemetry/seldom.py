"""A warning about something that happens again and again, at most some every few seconds."""

import logging
from typing import Any

from paramfleet_shared.system.clock import Clock

__all__ = ["SELDOM_S", "SeldomWarning"]

SELDOM_S = 5.0
"""Seconds in which a warning is written a limited number of times."""


class SeldomWarning:
    """One kind of warning; the first is written at once. One thread uses it at a time.

    A warning says how many were left out before it (``left_out``), if any were.

    Args:
        log: Where to.
        event: Its name.
        clock: Says when the next may be written.
        at_once: How many are written within ``SELDOM_S``, from 1.
    """

    def __init__(
        self, log: logging.Logger, event: str, clock: Clock, *, at_once: int = 1
    ) -> None:
        self._log = log
        self._event = event
        self._clock = clock
        self._at_once = at_once
        self._not_before: float | None = None
        self._left_now = at_once
        self._left_out = 0

    def warn(self, **facts: Any) -> None:
        """Write it, unless that was done often enough just now."""
        now = self._clock.monotonic()
        if self._not_before is None or now >= self._not_before:
            self._not_before = now + SELDOM_S
            self._left_now = self._at_once
        if not self._left_now:
            self._left_out += 1
            return
        self._left_now -= 1
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        self._log.warning(self._event, extra={**facts, **more})
