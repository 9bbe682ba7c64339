"""Where a test may break a call.

Production never does: ``NO_FAULTS`` is recognised and costs nothing. A plan of
faults for tests is ``paramfleet_shared.testing.faults.FaultPlan``; those of ``paramfleet
verify`` and ``paramfleet chaos`` are in ``breaking``.
"""

from enum import Enum
from typing import Final, Protocol

__all__ = ["NO_FAULTS", "FaultHook", "Verdict"]


class Verdict(Enum):
    """What is to happen to a request or a reply."""

    DELIVER = "deliver"
    """Nothing unusual."""
    DROP = "drop"
    """It is lost as if the connection broke: the caller doesn't know what happened."""
    DUPLICATE = "duplicate"
    """Requests only: it arrives twice; the caller gets the second answer."""
    HOLD = "hold"
    """Requests only: it waits in ``on_hold`` first, and others overtake it."""


class FaultHook(Protocol):
    """Asked once about each request and each reply, at the server's edge or a channel's."""

    def on_request(self, op: str) -> Verdict:
        """Decide about a request before it is handled (server) or sent (channel)."""
        ...

    async def on_hold(self, op: str) -> Verdict:
        """Wait with a request that is to be held, and decide about it: no further hold."""
        ...

    async def on_reply(self, op: str) -> Verdict:
        """Decide about a reply before it is sent (server) or returned (channel); may wait."""
        ...


class _NoFaults:
    def on_request(self, op: str) -> Verdict:
        del op
        return Verdict.DELIVER

    async def on_hold(self, op: str) -> Verdict:
        del op
        return Verdict.DELIVER

    async def on_reply(self, op: str) -> Verdict:
        del op
        return Verdict.DELIVER


NO_FAULTS: Final[FaultHook] = _NoFaults()
"""Everything arrives."""
