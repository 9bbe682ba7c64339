"""Futures are woken at their deadlines, by one timer."""

import asyncio

import pytest

from paramfleet_shared.net.rpc.alarm import Alarm, DeadlinePassedError


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
