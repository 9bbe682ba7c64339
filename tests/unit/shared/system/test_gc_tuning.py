"""A process that lives long stays small."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from paramfleet_shared.system.gc_tuning import freeze, keep_tidy
from paramfleet_shared.testing.clock import FakeClock


class Node:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def only_on_demand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


async def test_cycles_are_freed_once_a_period() -> None:
    clock = FakeClock()
    gone: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        tidying = tasks.create_task(keep_tidy(clock, period_s=60))
        for _ in range(2):
            weakref.finalize(Node(), gone.append, "freed")
        await clock.advance(59)
        assert gone == []
        await clock.advance(1)
        assert gone == ["freed"] * 2
        weakref.finalize(Node(), gone.append, "freed later")
        await clock.advance(60)
        assert gone[2:] == ["freed later"]
        tidying.cancel()


def test_what_is_frozen_is_not_looked_at_again() -> None:
    before = Node()
    freeze()

    assert gc.get_freeze_count() > 0
    assert not any(each is before for each in gc.get_objects())
