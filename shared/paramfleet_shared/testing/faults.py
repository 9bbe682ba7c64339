"""Faults as values, in logical time.

"The third reply to a push is lost" means the same on every machine and at
every speed; "at 1.2 s" does not.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from paramfleet_shared.net.rpc.faults import Verdict

__all__ = ["FaultPlan", "Fired", "HeldReply"]


class Fired(NamedTuple):
    """One planned fault that has happened."""

    kind: str
    """``drop_request``, ``duplicate_request``, ``drop_reply`` or ``delay_reply``."""
    of: str
    """The operation."""
    nth: int
    """Which of its requests or replies, from 1."""


@dataclass(slots=True)
class HeldReply:
    """A reply that waits for the test."""

    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the reply is ready and waits."""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the reply go."""
        self.released.set()


class FaultPlan:
    """A ``FaultHook`` that breaks the calls it was told to, each once.

    Requests and replies of an operation are counted from 1, retries included.
    Methods return the plan, so that plans read as one sentence:
    ``FaultPlan().drop_reply(of="push", nth=3).duplicate_request(of="push", nth=5)``.
    """

    def __init__(self) -> None:
        self.fired: list[Fired] = []
        """What has happened so far, in order."""
        self._planned: dict[tuple[str, str, int], str] = {}
        self._held: dict[tuple[str, int], HeldReply] = {}
        self._num_seen: Counter[tuple[str, str]] = Counter()

    def drop_request(self, *, of: str, nth: int = 1) -> "FaultPlan":
        """Lose the request before anybody handles it."""
        return self._plan("request", of, nth, "drop_request")

    def duplicate_request(self, *, of: str, nth: int = 1) -> "FaultPlan":
        """Deliver the request twice; the caller gets the second answer."""
        return self._plan("request", of, nth, "duplicate_request")

    def drop_reply(self, *, of: str, nth: int = 1) -> "FaultPlan":
        """Handle the request, and lose the answer."""
        return self._plan("reply", of, nth, "drop_reply")

    def delay_reply(self, *, of: str, nth: int = 1) -> "FaultPlan":
        """Hold the answer until the test releases it through ``held_reply``."""
        self._held[of, nth] = HeldReply()
        return self._plan("reply", of, nth, "delay_reply")

    def held_reply(self, *, of: str, nth: int = 1) -> HeldReply:
        """Return the handle of a reply that ``delay_reply`` was told to hold."""
        return self._held[of, nth]

    def on_request(self, op: str) -> Verdict:
        """Decide about the next request of ``op``."""
        match self._next("request", op):
            case Fired(kind="drop_request"):
                return Verdict.DROP
            case Fired(kind="duplicate_request"):
                return Verdict.DUPLICATE
            case _:
                return Verdict.DELIVER

    async def on_hold(self, op: str) -> Verdict:
        """Deliver the request: a plan holds replies only."""
        del op
        return Verdict.DELIVER

    async def on_reply(self, op: str) -> Verdict:
        """Decide about the next reply of ``op``."""
        match self._next("reply", op):
            case Fired(kind="drop_reply"):
                return Verdict.DROP
            case Fired(kind="delay_reply", nth=nth):
                reply = self._held[op, nth]
                reply.held.set()
                await reply.released.wait()
            case _:
                pass
        return Verdict.DELIVER

    def _plan(self, point: str, of: str, nth: int, kind: str) -> "FaultPlan":
        assert nth >= 1, "requests and replies are counted from 1"
        self._planned[point, of, nth] = kind
        return self

    def _next(self, point: str, op: str) -> Fired | None:
        self._num_seen[point, op] += 1
        nth = self._num_seen[point, op]
        kind = self._planned.get((point, op, nth))
        if kind is None:
            return None
        fired = Fired(kind, op, nth)
        self.fired.append(fired)
        return fired
