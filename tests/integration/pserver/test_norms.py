"""Norms of a step's merged gradient, on real servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.errors.served import (
    NormFailedError,
    NormNotSharedError,
    OperationModeError,
    StepPassedError,
    TotalIncompleteError,
)
from paramfleet_shared.net.wire.identity import NORMS
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


async def norm(
    worker: Worker,
    *values: float,
    step: int = 0,
    weight: float = 1.0,
    number: int = 0,
    timeout_s: float = LATE_S,
    **more: Any,
) -> tuple[float, bool]:
    about: dict[str, Any] = {
        "rank": worker.rank,
        "incarnation": worker.incarnation,
        "piece": 0,
        "order": 2.0,
    }
    about |= {"step": step, "weight": weight, "number": number, "tables": ["flat"], **more}
    message = Message(fields=about, tensors={"0.values": np.array(values, np.float32)})
    answer = await worker.call(0, "norm", message, timeout_s)
    return float(answer.tensors["norm"][0]), answer.fields["whole"]


async def all_of(*asked: Awaitable[tuple[float, bool]]) -> list[tuple[float, bool]]:
    return list(await asyncio.gather(*asked))


async def push(worker: Worker, *, step: int = 0, weight: float = 1.0, norms: Any = ()) -> None:
    (message,) = worker.push_messages(
        {"flat": np.ones(8, np.float32)}, step=step, weight=weight
    )
    tensors = {**message.tensors, NORMS: np.array(norms, np.float64)}
    await worker.send("push", [Message(fields=message.fields, tensors=tensors)])


async def test_all_workers_have_the_norm_of_the_weighted_mean_of_their_gradients(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    for step in range(3):
        found = await all_of(
            norm(ada, 4, 0, step=step, weight=1), norm(bob, 0, 4, step=step, weight=3)
        )
        assert found == [(1 + 9, False)] * 2
        again = await all_of(
            norm(ada, 1, 1, step=step, number=1), norm(bob, 1, 1, step=step, number=1)
        )
        assert again == [(2, False)] * 2, "another norm of the same step"
        assert await norm(ada, 4, 0, step=step) == (10, False), "who asks again has it again"
        for worker in (ada, bob):
            await push(worker, step=step, norms=[10**0.5, 2**0.5])
            await worker.pull("flat", min_version=step)


async def test_large_gradients_are_merged_beside_the_event_loop(start_servers: Start) -> None:
    ada, bob = await crew(await start_servers(1), 2)
    values = np.ones(100_000)

    found = await all_of(norm(ada, *values), norm(bob, *values))

    assert found == [(100_000, False)] * 2


async def test_a_lost_answer_is_asked_for_again(start_servers: Start) -> None:
    plan = FaultPlan().drop_reply(of="norm", nth=1).duplicate_request(of="norm", nth=3)
    ada, bob = await crew(await start_servers(1, faults=plan), 2)

    assert await all_of(norm(ada, 1), norm(bob, 1)) == [(1, False)] * 2
    assert plan.fired


async def test_who_left_or_has_no_batch_is_not_waited_for(start_servers: Start) -> None:
    ada, bob, eve = await crew(await start_servers(1), 3)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(norm(ada, 3))
        awaited = tasks.create_task(eve.ask("await_step", step=0))
        await bob.ask("leave", step=0)
        assert (await awaited)[0].fields["awaited"]
        await eve.push({}, step=0, weight=0.0)

    assert first.result() == (9, False)


async def test_who_takes_the_step_without_clipping_is_named_at_once(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    async def clips_alone() -> None:
        with pytest.raises(NormNotSharedError, match="worker 1 has taken the step without"):
            await norm(ada, 3)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(clips_alone())
        await bob.push({"flat": np.ones(8, np.float32)}, step=0)
    with pytest.raises(NormNotSharedError):
        await norm(ada, 3)


async def test_a_worker_that_comes_later_has_the_norm_that_another_names_with_its_push(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(norm(bob, 3))
        await push(ada, norms=[5.0])
    assert waiting.result() == (5.0, True), "as after a server lost the parts"
    assert await norm(bob, 3) == (5.0, True)
    with pytest.raises(NormNotSharedError):
        await norm(bob, 3, number=1)

    await push(bob, norms=[5.0])
    await bob.pull("flat", min_version=1)
    assert await norm(bob, 3) == (5.0, True), "of a step before, as for one that returns"
    with pytest.raises(StepPassedError):
        await norm(bob, 3, number=1)


async def test_who_waits_in_vain_is_given_the_names_of_the_missing(
    start_servers: Start,
) -> None:
    ada, _, _ = await crew(await start_servers(1), 3)

    with pytest.raises(TotalIncompleteError, match="'clip_grad_norm_ #1' of step 0") as caught:
        await norm(ada, 1, timeout_s=0.5)

    assert caught.value.missing == [1, 2]


async def test_a_failed_job_ends_the_wait_at_once(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, _ = await crew(cluster, 2)

    async def waits_in_vain() -> None:
        with pytest.raises(JobFailedError, match="it died"):
            await norm(ada, 1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(waits_in_vain())
        await asyncio.sleep(0)
        cluster.routes[0].fail(JobFailedError(role="worker", index=1, reason="it died"))


async def test_a_norm_that_cant_be_computed_is_an_error_of_all_who_wait(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    def has_no_memory(*_: Any) -> Any:
        message = "no memory"
        raise MemoryError(message)

    monkeypatch.setattr("paramfleet_pserver.core.sums.norms._merged", has_no_memory)
    found = await asyncio.gather(norm(ada, 1), norm(bob, 1), return_exceptions=True)

    assert [type(each) for each in found] == [NormFailedError] * 2
    assert "MemoryError: no memory" in str(found[0])
    with pytest.raises(NormFailedError):
        await norm(ada, 1)


async def test_a_norm_below_0_is_refused_and_an_infinite_one_is_a_norm(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)

    for wrong in (-1.0, -float("inf")):
        with pytest.raises(MalformedMessageError, match="below 0"):
            await push(ada, norms=[wrong])

    await push(ada, norms=[float("inf")])
    assert await norm(bob, 1) == (float("inf"), True), "bob drops the gradients as ada has"


async def test_odd_requests_are_refused_and_other_modes_have_no_norms(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1)
    wrong: list[dict[str, Any]] = [
        {"order": -1.0},
        {"weight": -1.0},
        {"weight": 2.0**54},
        {"weight": 1e308},
        {"number": 1000},
        {"tables": ["flat", "flat"]},
        {"tables": ["flat", "other"]},
        {"tables": "flat"},
    ]
    for more in wrong:
        with pytest.raises(MalformedMessageError):
            await norm(ada, 1, **more)
    with pytest.raises(MalformedMessageError, match="norms"):
        await push(ada, norms=np.ones((1, 1)))
    assert await norm(ada, 3) == (9, False)
    other = await start_servers(1)
    (eve,) = await crew(other, 1, mode="async")
    with pytest.raises(OperationModeError):
        await norm(eve, 1)
