"""A hold of pushes ends by itself."""

import asyncio

from typing_extensions import override

from paramfleet_pserver.waiting.holding import Holding
from paramfleet_shared.net.wire.identity import PushIdentity
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S

IDENTITY = PushIdentity(worker=0, incarnation=1, table="rows", sequence=1)


class SlowClock(FakeClock):
    """A clock by which the loop's timers ring too soon, as uvloop's do by a millisecond."""

    @override
    def monotonic(self) -> float:
        return 0.5 * SystemClock().monotonic()


async def test_a_hold_ends_though_its_alarm_rings_before_its_time_is_over() -> None:
    holding = Holding(SlowClock())
    holding.hold("cut", for_s=0.02, targets={})
    async with asyncio.timeout(LATE_S):
        await holding.pass_through([IDENTITY], deadline=None)

    assert not holding.is_held
    assert holding.held_s >= 0.02
