"""Pushes that wait while a checkpoint is written, each no longer than its deadline allows.

The saver holds the pushes of all servers, lets those through that another server has applied
already, and has each server save. A server lets all go on when it has taken its image of the
tables: what comes then is in no file of it. A saver that dies leaves a hold behind, which ends
by itself.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from paramfleet_pserver.core.holding import PushHold, Source
from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.checkpoint.cuts import PushesHeldError
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.system.clock import Clock

__all__ = ["Holding"]

LONGEST_PARK_S = 20.0
"""Seconds a push is kept before it is refused, to be sent again."""

_PUSHES = "pushes"

log = logging.getLogger(__name__)


class Holding:
    """The holds of one server. Used from one event loop.

    Args:
        clock: By whose time holds and deadlines are meant.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._core = PushHold()
        self._parking: Parking[str] = Parking(clock=clock)
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_held(self) -> bool:
        """Return whether pushes wait now."""
        return self._core.is_held

    @property
    def held_s(self) -> float:
        """Return the seconds of all holds that have ended."""
        return self._core.held_s

    def unfinished(self) -> list[tuple[int, int]]:
        """Return workers and incarnations whose exchange has begun and not ended."""
        return self._core.unfinished()

    async def pass_through(self, identity: ChangeIdentity, *, deadline: float | None) -> None:
        """Return when a push may be applied; the caller applies it without an ``await``.

        Args:
            identity: The push's.
            deadline: Of the request, in the clock's time.

        Raises:
            PushesHeldError: if that takes longer than half of the time left, or 20 seconds.
        """
        end, late = self._end_of(deadline), partial(_late, identity.worker)
        while not self._core.admits(identity):
            await self._parking.wait(_PUSHES, deadline=end, late=late)

    def note(self, identity: ChangeIdentity, *, continues: bool) -> None:
        """Note that a message was applied, and whether more of its exchange will follow."""
        self._core.note(identity, continues=continues)

    def hold(self, name: str, *, for_s: float, targets: Mapping[Source, int]) -> None:
        """Keep pushes back, but those up to the targets, until a save or ``for_s`` are over."""
        now = self._clock.monotonic()
        self._core.begin(name, now=now, until=now + for_s, targets=targets)
        self._set_alarm(for_s)
        self._parking.wake([_PUSHES])

    def begin_save(self, name: str) -> bool:
        """Keep the hold of this name until ``end``; return False if it isn't there."""
        return self._core.begin_save(name)

    def end(self, name: str) -> float:
        """Let all pushes go on; return how long they were held, 0 if they were not."""
        seconds = self._core.end(name, now=self._clock.monotonic())
        self._parking.wake([_PUSHES])
        return seconds

    def fail(self, error: FleetError) -> None:
        """Fail every push that waits, and all that will."""
        self._parking.fail(error)

    def _end_of(self, deadline: float | None) -> float:
        """Return until when a request with this deadline is kept."""
        now = self._clock.monotonic()
        if deadline is None:
            return now + LONGEST_PARK_S
        return now + min(LONGEST_PARK_S, max(deadline - now, 0.0) / 2)

    def _set_alarm(self, after_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(after_s, self._expire)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        if self._core.expire(now=now):
            log.warning("pserver.hold_expired")
            self._parking.wake([_PUSHES])
        elif (left_s := self._core.left_s(now=now)) is not None:
            self._set_alarm(left_s)  # a loop's timers may ring a millisecond too soon


def _late(worker: int, waited_s: float) -> FleetError:
    return PushesHeldError(rank=worker, waited_s=waited_s)
