"""What comes or leaves too slowly: frames without an end, bodies of a byte a second.

Somebody looks once a period; nothing is counted in between. A look that comes late, because
the process stood still, counts as two periods at most: that was not the peer's doing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from paramfleet_shared.net.wire.limits import Limits

__all__ = ["BodyPace", "FramePace", "Moving", "Pace", "look_period_s"]

_MAX_PERIOD_S = 1.0
_MAX_STEPS = 2


def look_period_s(limits: Limits) -> float:
    """Return the seconds between two looks."""
    return min(_MAX_PERIOD_S, limits.body_idle_timeout_s / 4, limits.head_timeout_s / 4)


class Moving(NamedTuple):
    """A body under way."""

    key: object
    """Which it is."""
    num_moved: int
    """Bytes of it that have come or left, and those before it."""
    num_before: int = 0
    """Bytes that had moved before it."""


class Pace:
    """How far one body must have come.

    Args:
        grace_s: Seconds from its beginning in which nothing is asked of it.
        num_moved: Bytes that have moved before.
    """

    __slots__ = ("_before", "_due_bytes", "_grace_s")

    def __init__(self, grace_s: float, num_moved: int = 0) -> None:
        self._grace_s = grace_s
        self._due_bytes = 0.0
        self._before = num_moved

    def is_late(self, num_moved: int, *, elapsed_s: float, bytes_per_s: float) -> bool:
        """Return whether it is slower than asked, on average, after some more time."""
        asked_s = max(0.0, elapsed_s - self._grace_s)
        self._grace_s = max(0.0, self._grace_s - elapsed_s)
        self._due_bytes += asked_s * bytes_per_s
        return num_moved - self._before < self._due_bytes


class BodyPace:
    """The bodies of one connection, which share the least rate of its peer.

    Args:
        limits: The least rate, and the grace.
        now: The time.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._grace_s = limits.body_idle_timeout_s
        self._bytes_per_s = limits.min_body_bytes_per_s
        self._max_step_s = _MAX_STEPS * look_period_s(limits)
        self._looked_at = now
        self._paces: dict[object, Pace] = {}

    def late(self, bodies: Iterable[Moving], now: float) -> list[object]:
        """Return the keys of those bodies that are too slow; one left out has ended."""
        elapsed_s = min(now - self._looked_at, self._max_step_s)
        self._looked_at = now
        under_way = list(bodies)
        if not under_way:
            self._paces.clear()
            return []
        before = self._paces
        self._paces = {
            body.key: before.get(body.key) or Pace(self._grace_s, body.num_before)
            for body in under_way
        }
        rate = self._bytes_per_s / len(under_way)
        return [
            body.key
            for body in under_way
            if self._paces[body.key].is_late(
                body.num_moved, elapsed_s=elapsed_s, bytes_per_s=rate
            )
        ]


class FramePace:
    """What must come whole in some time: settings, header blocks, frames.

    Args:
        limits: The times.
        now: The time.
        mark: What is under way from the beginning; None if nothing is.
    """

    def __init__(self, limits: Limits, now: float, mark: object = None) -> None:
        self._max_step_s = _MAX_STEPS * look_period_s(limits)
        self._looked_at = now
        self._mark = mark
        self._waited_s = 0.0

    def is_late(self, mark: object, allowed_s: float, now: float) -> bool:
        """Return whether the same has been under way for longer than allowed.

        Args:
            mark: What is under way; None if nothing is.
            allowed_s: Seconds that it may take.
            now: The time.
        """
        elapsed_s = min(now - self._looked_at, self._max_step_s)
        self._looked_at = now
        if mark is None or mark != self._mark:
            self._mark, self._waited_s = mark, 0.0
            return False
        self._waited_s += elapsed_s
        return self._waited_s > allowed_s
