"""Sums over the workers of a step, on a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.errors.served import (
    ModeMismatchError,
    NotAMemberError,
    OperationModeError,
    StepPassedError,
    StepTooEarlyError,
    TotalIncompleteError,
    TotalMismatchError,
)
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.faults import FaultPlan
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


async def total(
    worker: Worker,
    *values: float,
    step: int = 0,
    name: str = "x",
    timeout_s: float = LATE_S,
    **tensors: Any,
) -> list[float]:
    fields = {"rank": worker.rank, "incarnation": worker.incarnation}
    message = Message(
        fields={**fields, "step": step, "name": name},
        tensors=tensors or {"part": np.array(values, np.float64)},
    )
    answer = await worker.call(0, "total", message, timeout_s)
    found: list[float] = answer.tensors["sum"].tolist()
    return found


async def until_one_waits(cluster: Cluster) -> None:
    async with asyncio.timeout(LATE_S):
        while not cluster.routes[0].facts()["waiting_sums"]:  # noqa: ASYNC110 - polls a server
            await asyncio.sleep(0.01)


def ones() -> dict[str, Any]:
    return {"flat": np.ones(8, np.float32)}


async def test_all_workers_of_a_step_have_the_same_sum(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    for step in range(3):
        first, second = await asyncio.gather(
            total(ada, 1, 2, step=step), total(bob, 10, 20, step=step)
        )
        assert first == second == [11, 22]
        for worker in (ada, bob):
            await worker.push(ones(), step=step)
            await worker.pull("flat", min_version=step)


async def test_who_left_or_has_pushed_is_not_waited_for(start_servers: Start) -> None:
    ada, bob, eve = await crew(await start_servers(1), 3)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(total(ada, 1))
        await bob.ask("leave", step=0)
        await eve.push(ones(), step=0)
    assert first.result() == [1]

    with pytest.raises(NotAMemberError):
        await total(bob, 1)
    with pytest.raises(StepPassedError):
        await total(eve, 1)
    with pytest.raises(StepTooEarlyError):
        await total(ada, 1, step=1)


async def test_a_lost_answer_is_asked_for_again(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="total", nth=1).duplicate_request(of="total", nth=3)
    ada, bob = await crew(await start_servers(1, faults=plan), 2)

    first, second = await asyncio.gather(total(ada, 1), total(bob, 2))

    assert first == second == [3]
    assert plan.fired


async def test_who_waits_in_vain_is_given_the_names_of_the_missing(
    start_servers: Start,
) -> None:
    ada, _, _ = await crew(await start_servers(1), 3)

    with pytest.raises(TotalIncompleteError) as caught:
        await total(ada, 1, timeout_s=0.5)

    assert caught.value.missing == [1, 2]
    assert "'x' of step 0" in str(caught.value)


async def test_a_failed_job_ends_the_wait_at_once(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, _ = await crew(cluster, 2)

    async def waits_in_vain() -> None:
        with pytest.raises(JobFailedError, match="it died"):
            await total(ada, 1)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(waits_in_vain())
        await until_one_waits(cluster)
        cluster.routes[0].fail(JobFailedError(role="worker", index=1, reason="it died"))
    assert waiting.done()


async def test_parts_that_do_not_fit_are_refused(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(total(ada, 1, 2))
        await until_one_waits(cluster)
        with pytest.raises(TotalMismatchError):
            await total(bob, 1)
        for wrong in (
            {"part": np.ones(2, np.float32)},
            {"part": np.ones((1, 2))},
            {"part": np.array([1.0, np.nan])},
            {"other": np.ones(2)},
        ):
            with pytest.raises(MalformedMessageError):
                await total(bob, **wrong)
        for name in ("", "x" * 1001):
            with pytest.raises(MalformedMessageError):
                await total(bob, 1, name=name)
        await total(bob, 3, 4)
    assert waiting.result() == [4, 6]


async def test_other_modes_have_no_such_sums(start_servers: Start) -> None:
    (ada,) = await crew(await start_servers(1), 1, mode="async")

    with pytest.raises(OperationModeError):
        await total(ada, 1)


async def test_workers_declare_alike_whether_they_share_batch_statistics(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = cluster.worker(0), cluster.worker(1)
    terms: dict[str, Any] = {"tables": [FLAT.to_wire()], "mode": "sync", "worker_num": 2}
    await ada.ask("declare", sync_batch_norm=True, max_staleness=None, **terms)

    with pytest.raises(ModeMismatchError, match="sync_batch_norm"):
        await bob.ask("declare", max_staleness=None, **terms)
