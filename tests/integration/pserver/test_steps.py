"""One request that pushes a step and pulls what it makes of the tables."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.served import (
    OperationModeError,
    StepIncompleteError,
    StepPassedError,
)
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import InitializerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    from paramfleet_shared.net.wire.message import Message

    Start = Callable[..., Awaitable[Cluster]]

SIZE, DIM = 53, 3
FLAT = TableSpec(name="flat", kind="dense", size=SIZE)
ROWS = TableSpec(
    name="rows", kind="sparse", dim=DIM, initializer=InitializerSpec(kind="constant", value=5.0)
)
IDS = np.arange(7, dtype=np.int64)


async def crew(cluster: Cluster, num: int) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(FLAT, ROWS, mode="sync", worker_num=num)
    return workers


def pushed(worker: Worker, value: float, *, step: int) -> list[Message]:
    grads = np.full((len(IDS), DIM), value, np.float32)
    parts = {"flat": np.full(SIZE, value, np.float32), "rows": (IDS, grads)}
    return worker.push_messages(parts, step=step)


def plan_of(worker: Worker) -> ReadPlan:
    ids, _, offsets = partition(np.arange(9, dtype=np.int64), worker.placement.num_shards)
    rows = Read(table="rows", rows=RowIds(ids, offsets), dim=DIM, create=True)
    return ReadPlan([Read(table="flat", size=SIZE), rows], worker.placement)


async def take(
    worker: Worker, pushes: list[Message], timeout_s: float = LATE_S
) -> tuple[list[Message], list[Any]]:
    """Send a step to all servers at once: the answers, and the values of both tables."""
    plan = plan_of(worker)
    answers = await asyncio.gather(
        *(
            worker.call(server, "step", message, timeout_s)
            for server, message in enumerate(plan.behind(pushes))
        )
    )
    return answers, plan.join(answers)


async def test_a_step_is_answered_with_what_all_pushes_make_of_the_tables(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(2), 2)

    for step in range(3):
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(take(ada, pushed(ada, 1.0, step=step)))
            second = tasks.create_task(take(bob, pushed(bob, 3.0, step=step)))

        for answers, (flat, rows) in (first.result(), second.result()):
            assert [answer.fields["versions"] for answer in answers] == [[step + 1] * 2] * 2
            assert not any(answer.fields["duplicate"] for answer in answers)
            np.testing.assert_array_equal(flat, np.full(SIZE, -2.0 * (step + 1), np.float32))
            ids = plan_of(ada).reads[1].rows
            assert ids is not None
            trained = ids.ids < len(IDS)
            assert set(rows[trained].ravel()) == {5.0 - 2.0 * (step + 1)}
            assert set(rows[~trained].ravel()) == {5.0}
        assert all(answer.fields["waited_s"] >= 0 for answer in first.result()[0])


async def test_a_step_equals_a_push_and_a_pull(start_servers: Start) -> None:
    found = []
    for together in (True, False):
        (alone,) = await crew(await start_servers(2), 1)
        pushes = pushed(alone, 0.1, step=0)
        if together:
            _, (flat, rows) = await take(alone, pushes)
        else:
            await alone.send("push", pushes)
            plan = plan_of(alone)
            messages = plan.messages(rank=0, min_step=1)
            flat, rows = plan.join(await alone.send("pull", messages))
        found.append((flat, rows))

    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


async def test_a_step_whose_answer_was_lost_is_taken_once(start_servers: Start) -> None:
    faults = FaultPlan().drop_reply(of="step", nth=1).duplicate_request(of="step", nth=2)
    cluster = await start_servers(1)
    (alone,) = [cluster.worker(faults=faults)]
    await alone.declare(FLAT, ROWS, mode="sync", worker_num=1)

    answers, (flat, _) = await take(alone, pushed(alone, 1.0, step=0))

    assert answers[0].fields["duplicate"] is True
    np.testing.assert_array_equal(flat, np.full(SIZE, -1.0, np.float32))


async def test_a_step_that_waits_in_vain_is_kept_and_names_who_is_missing(
    start_servers: Start,
) -> None:
    ada, bob = await crew(await start_servers(1), 2)
    pushes = pushed(ada, 1.0, step=0)

    with pytest.raises(StepIncompleteError) as late:
        await take(ada, pushes, timeout_s=0.3)
    await bob.send("push", pushed(bob, 3.0, step=0))
    answers, (flat, _) = await take(ada, pushes)

    assert late.value.facts["missing"] == [1]
    assert answers[0].fields["duplicate"] is True
    np.testing.assert_array_equal(flat, np.full(SIZE, -2.0, np.float32))


async def test_a_step_whose_pull_is_wrong_changes_nothing(start_servers: Start) -> None:
    (alone,) = await crew(await start_servers(1), 1)
    (message,) = plan_of(alone).behind(pushed(alone, 1.0, step=0))
    fields, tensors = dict(message.fields), dict(message.tensors)
    lacking = {name: tensor for name, tensor in tensors.items() if name != "pull.1.ids"}
    wrong = [
        replace(message, fields={k: v for k, v in fields.items() if k != "pull"}),
        replace(message, fields={**fields, "pull": 3}),
        replace(message, fields={**fields, "pull": [{"table": "nobody", "create": True}]}),
        replace(message, tensors=lacking),
    ]

    for each in wrong:
        with pytest.raises((MalformedMessageError, ContractError)):
            await alone.call(0, "step", each)

    np.testing.assert_array_equal(await alone.pull("flat"), np.zeros(SIZE, np.float32))


async def test_a_step_that_is_over_is_refused(start_servers: Start) -> None:
    (alone,) = await crew(await start_servers(1), 1)
    await take(alone, pushed(alone, 1.0, step=0))

    with pytest.raises(StepPassedError):
        await take(alone, pushed(alone, 1.0, step=0))


async def test_there_are_no_steps_in_async(start_servers: Start) -> None:
    alone = (await start_servers(1)).worker()
    await alone.declare(FLAT, ROWS, mode="async", worker_num=1)

    with pytest.raises(OperationModeError):
        await take(alone, pushed(alone, 1.0, step=0))
