"""A worker that waits elsewhere learns that others wait in a step for it, on a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.errors.served import NotAMemberError, OperationModeError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

FLAT = TableSpec(name="flat", kind="dense", size=8)


async def crew(cluster: Cluster, num: int, *, mode: str = "sync") -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(FLAT, mode=mode, worker_num=num)
    return workers


async def awaited(worker: Worker, *, step: int = 0, timeout_s: float = LATE_S) -> bool:
    (answer,) = await worker.ask("await_step", timeout_s, step=step)
    found: bool = answer.fields["awaited"]
    return found


def ones() -> dict[str, Any]:
    return {"flat": np.ones(8, np.float32)}


async def test_it_is_answered_as_soon_as_another_has_pushed_the_step(
    start_servers: Start,
) -> None:
    ada, bob, eve = await crew(await start_servers(1), 3)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(awaited(ada))
        await bob.push(ones(), step=0)
    assert waiting.result()
    assert await awaited(eve), "a worker that asks later, too"

    for worker in (ada, eve):
        await worker.push({}, step=0, weight=0.0)
    assert not await awaited(ada, step=1, timeout_s=0.3)


async def test_it_is_answered_as_soon_as_another_asks_for_a_sum_over_the_workers(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)
    about = {"rank": bob.rank, "incarnation": bob.incarnation, "step": 0, "name": "x"}
    part = Message(fields=about, tensors={"part": np.ones(1)})

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(awaited(ada))
        asking = tasks.create_task(bob.call(0, "total", part))
        assert await waiting
        await ada.push({}, step=0, weight=0.0)
    assert asking.result().tensors["sum"].tolist() == [1]


async def test_an_awaited_worker_without_a_batch_leaves_the_values_to_the_others(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)
    before = await bob.pull("flat")

    await bob.push(ones(), step=0, weight=4.0)
    await ada.push({}, step=0, weight=0.0)

    values = await ada.pull("flat", min_version=1)
    np.testing.assert_array_equal(values, before - 1, "lr 1, the mean of one worker's batch")


async def test_who_takes_part_no_more_is_refused_and_a_failed_job_ends_the_wait(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2)
    await ada.ask("leave", step=0)
    with pytest.raises(NotAMemberError):
        await awaited(ada)

    async def waits_in_vain() -> None:
        with pytest.raises(JobFailedError, match="it died"):
            await awaited(bob)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(waits_in_vain())
        await asyncio.sleep(0)
        cluster.routes[0].fail(JobFailedError(role="worker", index=0, reason="it died"))


async def test_other_modes_have_no_steps_that_are_awaited(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, mode="async")

    with pytest.raises(OperationModeError):
        await awaited(ada)
