"""A worker's calls by the thread that waits for them, and by the loop what doesn't return."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author, Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors.served import StepIncompleteError
from paramfleet_shared.net.rpc.client import DeadlineExceededError
from paramfleet_shared.net.rpc.tasks import begun_here, rest_on_loop
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from tests.integration.pserver.conftest import Cluster

    from paramfleet_shared.net.rpc.connection.direct import Waker
    from paramfleet_shared.net.wire.message import Message

    Start = Callable[..., Awaitable[Cluster]]

SIZE = 11
FLAT = TableSpec(name="flat", kind="dense", size=SIZE)


@pytest.fixture
async def connect() -> AsyncIterator[Any]:
    """Return ``connect(placement, ...)``: pservers, and what ends their threads' waits."""
    opened = []

    async def connect(
        placement: Placement, *, step_timeout_s: float = 10.0
    ) -> tuple[PServers, Waker]:
        pservers = PServers(
            placement,
            clock=SystemClock(),
            call_timeout_s=LATE_S,
            step_timeout_s=step_timeout_s,
            author=Author(rank=0, incarnation=1),
        )
        opened.append(pservers)
        return pservers, await pservers.open_direct()

    yield connect
    for pservers in opened:
        await pservers.close()


async def made(work: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run work in a thread, and its rest here: whether there was none, and what it returns."""
    found = await asyncio.to_thread(begun_here, work)
    return (False, await rest_on_loop(work)) if found is None else (True, found[0])


async def pushes(cluster: Cluster, step: int, *, workers: int = 1) -> list[Message]:
    worker = cluster.worker()
    await worker.declare(FLAT, mode="sync", worker_num=workers)
    worker.sequence = step
    return worker.push_messages({"flat": np.ones(SIZE, np.float32)}, step=step)


def plan_of(placement: Placement) -> ReadPlan:
    return ReadPlan([Read(table="flat", size=SIZE)], placement)


async def test_steps_are_taken_by_the_thread_that_waits(
    start_servers: Start, connect: Any
) -> None:
    cluster = await start_servers(2)
    (pservers, _), plan = await connect(cluster.placement), plan_of(cluster.placement)

    for step in range(3):
        messages = plan.behind(await pushes(cluster, step))
        alone, (answers, waited_s) = await made(pservers.step(messages))

        assert alone
        assert waited_s >= 0
        (flat,) = plan.join(answers)
        np.testing.assert_array_equal(flat, np.full(SIZE, -1.0 - step, np.float32))
    assert pservers.traffic.sent_bytes["step"] > 0
    assert pservers.traffic.call_times["step"][0] == 3


async def test_a_step_whose_connection_broke_is_asked_again_and_taken_once(
    start_servers: Start, connect: Any
) -> None:
    cluster = await start_servers(2)
    first, second = cluster.placement.endpoints
    async with Proxy(int(second.rpartition(":")[2])) as wire:
        endpoints = (first, wire.endpoint)
        placement = Placement(endpoints=endpoints, num_shards=cluster.placement.num_shards)
        (pservers, _), plan = await connect(placement), plan_of(placement)
        messages = await pushes(cluster, 0)
        wire.cut_after(200)  # within the request or its answer

        alone, (answers, _) = await made(pservers.step(plan.behind(messages)))

        assert not alone
        np.testing.assert_array_equal(plan.join(answers)[0], np.full(SIZE, -1.0, np.float32))
        messages = await pushes(cluster, 1)
        _, (answers, _) = await made(pservers.step(plan.behind(messages)))
        np.testing.assert_array_equal(plan.join(answers)[0], np.full(SIZE, -2.0, np.float32))


async def test_a_step_that_waits_in_vain_says_for_whom(
    start_servers: Start, connect: Any
) -> None:
    cluster = await start_servers(2)
    pservers, _ = await connect(cluster.placement, step_timeout_s=0.4)
    messages = plan_of(cluster.placement).behind(await pushes(cluster, 0, workers=2))

    with pytest.raises(StepIncompleteError) as late:
        await made(pservers.step(messages))

    assert late.value.facts["missing"] == [1]


async def test_a_pserver_that_is_silent_is_named_at_the_deadline(
    start_servers: Start, connect: Any
) -> None:
    cluster = await start_servers(1)
    async with Proxy(int(cluster.placement.endpoints[0].rpartition(":")[2])) as wire:
        placement = Placement(endpoints=(wire.endpoint,), num_shards=8)
        pservers, _ = await connect(placement, step_timeout_s=0.3)
        messages = plan_of(placement).behind(await pushes(cluster, 0))
        wire.freeze()

        with pytest.raises(DeadlineExceededError) as late:
            await made(pservers.step(messages))
        wire.thaw()

    assert late.value.peer == "pserver 0"
    assert late.value.operation == "step"


async def test_a_wait_that_is_ended_goes_to_the_loop(
    start_servers: Start, connect: Any
) -> None:
    cluster = await start_servers(1)
    (pservers, waker), plan = await connect(cluster.placement), plan_of(cluster.placement)
    work = pservers.step(plan.behind(await pushes(cluster, 0, workers=2)))

    async def wake() -> None:
        await cluster.until(lambda facts: facts["waiting_pulls"])
        waker.wake()

    found, _ = await asyncio.gather(asyncio.to_thread(begun_here, work), wake())

    assert found is None
    work.close()
