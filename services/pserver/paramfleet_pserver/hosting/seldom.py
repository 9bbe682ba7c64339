"""A warning about something that is tried again and again, at most every few seconds."""

import logging
from typing import Any

from paramfleet_shared.system.clock import Clock

__all__ = ["SELDOM_S", "SeldomWarning"]

SELDOM_S = 5.0
"""Seconds between two of them."""


class SeldomWarning:
    """One kind of warning; the first is written at once. One thread uses it at a time.

    Args:
        log: Where to.
        event: Its name.
        clock: Says when the next may be written.
    """

    def __init__(self, log: logging.Logger, event: str, clock: Clock) -> None:
        self._log = log
        self._event = event
        self._clock = clock
        self._not_before: float | None = None

    def warn(self, **facts: Any) -> None:
        """Write it, unless that was done just now."""
        now = self._clock.monotonic()
        if self._not_before is None or now >= self._not_before:
            self._not_before = now + SELDOM_S
            self._log.warning(self._event, extra=facts)
