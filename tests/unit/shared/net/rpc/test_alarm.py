"""Futures are woken at their deadlines, by one timer."""

import asyncio

import pytest
from typing_extensions import override

from paramfleet_shared.net.rpc.alarm import Alarm, DeadlinePassedError
from paramfleet_shared.system.clock import SystemClock


def futures(number: int) -> list[asyncio.Future[int]]:
    return [asyncio.get_running_loop().create_future() for _ in range(number)]


async def test_each_future_is_woken_when_its_own_time_is_over() -> None:
    alarm = Alarm()
    order: list[asyncio.Future[int]] = []
    late, soon, never = futures(3)
    for future in (late, soon):
        future.add_done_callback(order.append)
    alarm.add(never, 60.0)
    alarm.add(late, 0.03)
    alarm.add(soon, 0.01)

    for future in (late, soon):
        with pytest.raises(DeadlinePassedError):
            await future

    assert order == [soon, late]
    assert not never.done()
    alarm.close()


class LateLoop(asyncio.SelectorEventLoop):
    """Its clock is behind, as that of a busy uvloop, which reads it once an iteration."""

    behind_s = 0.0

    @override
    def time(self) -> float:
        return super().time() - self.behind_s


def test_nobody_is_woken_early_by_a_loop_whose_clock_was_behind() -> None:
    async def waited_s() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LateLoop)
        alarm = Alarm()
        (future,) = futures(1)
        started = SystemClock().monotonic()
        loop.behind_s = 0.02
        alarm.add(future, 0.03)
        loop.behind_s = 0.0
        with pytest.raises(DeadlinePassedError):
            await future
        alarm.close()
        return SystemClock().monotonic() - started

    with asyncio.Runner(loop_factory=LateLoop) as runner:
        assert runner.run(waited_s()) >= 0.029


async def test_what_is_done_or_dropped_is_left_alone() -> None:
    alarm = Alarm()
    done, dropped, last = futures(3)
    for future in (done, dropped):
        alarm.add(future, 0.005)
    alarm.add(last, 0.01)

    done.set_result(7)
    alarm.drop(dropped)
    alarm.drop(dropped)
    with pytest.raises(DeadlinePassedError):
        await last

    assert done.result() == 7
    assert not dropped.done()
    alarm.close()


async def test_a_closed_alarm_wakes_nobody() -> None:
    alarm, other = Alarm(), Alarm()
    silent, witness = futures(2)
    alarm.add(silent, 0.001)
    other.add(witness, 0.01)

    alarm.close()
    with pytest.raises(DeadlinePassedError):
        await witness

    assert not silent.done()
    other.close()
    Alarm().close()
