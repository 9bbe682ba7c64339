"""Breaks calls as ``paramfleet chaos`` asks for, while a job runs."""

import random
from collections.abc import Callable

from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook, Verdict
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = ["OTHERS", "ChaosFaults", "chaos_faults"]

OTHERS = "others"
"""The peer of calls that come from others: only what concerns all peers breaks them."""


class ChaosFaults:
    """A ``FaultHook`` whose faults come and go. Used from one event loop.

    Args:
        peer: Whom the calls are to, as ``pserver:0``; or ``OTHERS``.
        clock: By whose time faults last.
        base: What breaks calls besides.
    """

    def __init__(self, peer: str, clock: Clock, base: FaultHook = NO_FAULTS) -> None:
        self._peer = peer
        self._clock = clock
        self._base = base
        self._random = random.Random(peer)  # noqa: S311 -- a test's

    def on_request(self, op: str) -> Verdict:
        """Decide about the next request."""
        now = hurting.broken(self._peer, self._clock.monotonic())
        if now is None:
            return self._base.on_request(op)
        chance = self._random.random()
        if now.apart_s or chance < now.reorder:
            return Verdict.HOLD
        if self._random.random() < now.drop:
            return Verdict.DROP
        return Verdict.DUPLICATE if self._random.random() < now.duplicate else Verdict.DELIVER

    async def on_hold(self, op: str) -> Verdict:
        """Wait with a request; it is lost if the peers were apart meanwhile."""
        now = hurting.broken(self._peer, self._clock.monotonic())
        if now is None:
            return await self._base.on_hold(op)
        if now.apart_s:
            await self._clock.sleep(now.apart_s)
            return Verdict.DROP
        await self._clock.sleep(self._random.random() * now.reorder_s)
        return Verdict.DELIVER

    async def on_reply(self, op: str) -> Verdict:
        """Decide about the next reply; may wait."""
        now = hurting.broken(self._peer, self._clock.monotonic())
        if now is None:
            return await self._base.on_reply(op)
        if now.apart_s:
            await self._clock.sleep(now.apart_s)
            return Verdict.DROP
        if self._random.random() < now.delay:
            await self._clock.sleep(self._random.random() * now.delay_s)
        return Verdict.DROP if self._random.random() < now.drop else Verdict.DELIVER


def chaos_faults(
    settings: JobSettings, clock: Clock, *, base: Callable[[int], FaultHook] | None = None
) -> Callable[[str], FaultHook]:
    """Return by peer what breaks calls: nothing, unless the settings allow it.

    Args:
        settings: The process's.
        clock: By whose time faults last.
        base: By pserver, what breaks calls besides.
    """

    def of(peer: str) -> FaultHook:
        below = NO_FAULTS
        role, _, index = peer.partition(":")
        if base is not None and role == "pserver":
            below = base(int(index))
        return ChaosFaults(peer, clock, below) if settings.chaos else below

    return of
