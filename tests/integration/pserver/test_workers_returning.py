"""A worker of sync is started again, or given up, over real connections."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors.served import FencedError, StepIncompleteError, VersionGoneError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ADAM = OptimizerSpec(rule="adam")
ROWS = TableSpec(name="rows", kind="sparse", dim=3, optimizer=ADAM)
FLAT = TableSpec(name="flat", kind="dense", size=20, optimizer=ADAM)
IDS = list(range(30))


async def crew(cluster: Cluster, num: int, **terms: Any) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(ROWS, FLAT, mode="sync", worker_num=num, **terms)
    return workers


def part(rank: int, step: int) -> dict[str, Any]:
    """Return a worker's gradients of a step, which depend on nothing else."""
    random = np.random.default_rng(100 * rank + step)
    ids = np.unique(random.integers(0, 30, 9)).astype(np.int64)
    rows = random.normal(size=(len(ids), 3)).astype(np.float32)
    return {"rows": (ids, rows), "flat": random.normal(size=20).astype(np.float32)}


async def read(worker: Worker, **more: Any) -> bytes:
    rows = await worker.pull("rows", IDS, **more)
    return rows.tobytes() + (await worker.pull("flat", **more)).tobytes()


async def test_a_worker_reads_the_version_of_its_step_from_servers_that_are_ahead(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2, returning=True)
    ada, bob = await crew(cluster, 2)
    seen = [await read(ada)]
    for step in range(3):
        await ada.push(part(0, step), step=step, lr=0.1)
        if step < 2:
            await bob.push(part(1, step), step=step, lr=0.1)
            seen.append(await read(ada, min_version=step + 1))
    late = bob.push_messages(part(1, 2), step=2, lr=0.1)
    await bob.call(0, "push", late[0])  # and dies before the other server has it
    await cluster.until(lambda facts: facts["tables"][0]["version"] == 3, server=0)

    new = cluster.worker(1, incarnation=2)
    answers = await new.declare(ROWS, FLAT, mode="sync", worker_num=2)

    assert [answer.fields["step"] for answer in answers] == [3, 2]
    assert await read(new, min_version=2, version=2) == seen[2]
    await new.push(part(1, 2), step=2, lr=0.1)
    assert await read(new, min_version=3, version=3) == await read(ada, min_version=3)
    with pytest.raises(VersionGoneError):
        await new.pull("flat", version=0)


async def test_where_a_worker_was_is_answered_to_its_latest_process_alone(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1, returning=True)
    (ada,) = await crew(cluster, 1)
    for step in range(2):
        (message,) = ada.push_messages(part(0, step), step=step, lr=0.1)
        state = np.frombuffer(b"behind %d" % step, np.uint8)
        tensors = {**message.tensors, "progress": state}
        await ada.call(0, "push", Message(fields=message.fields, tensors=tensors))

    new = cluster.worker(0, incarnation=2)
    await new.declare(ROWS, FLAT, mode="sync", worker_num=1)

    for asked, expected in ((1, b"behind 0"), (2, b"behind 1"), (None, b"behind 1")):
        (answer,) = await new.ask("progress", step=asked)
        assert answer.tensors["progress"].tobytes() == expected
    (nothing,) = await new.ask("progress", step=0)
    assert nothing.fields["step"] is None
    with pytest.raises(FencedError):
        await ada.ask("progress")


@pytest.mark.parametrize("seed", range(12))
async def test_all_servers_count_the_last_part_of_a_worker_that_is_given_up_or_none(
    start_servers: Start, seed: int
) -> None:
    """It dies after any of its messages: pushes, and pulls that say that all have its part."""
    choose = random.Random(seed)
    cluster = await start_servers(3)
    workers = await crew(cluster, 3, on_worker_loss="shrink")
    doomed, others = workers[2], workers[:2]
    steps = choose.randrange(3)
    for step in range(steps):
        await take(workers, step)

    acts = [("push", server) for server in range(3)]
    choose.shuffle(acts)
    confirms = [("confirm", server) for server in range(3)]
    choose.shuffle(confirms)
    messages = doomed.push_messages(part(2, steps), step=steps, lr=0.1)
    for worker in others:
        await worker.push(part(worker.rank, steps), step=steps, lr=0.1)
    for act, server in (acts + confirms)[: choose.randrange(7)]:
        if act == "push":
            await doomed.call(server, "push", messages[server])
        else:
            await confirm(doomed, server, steps + 1)

    ends = []
    for routes in cluster.routes:
        routes.lose(Rank(2), 1)
        ((rank, incarnation, end),) = routes.facts()["stopped"]
        assert (rank, incarnation) == (2, 1)
        ends.append(end)
    with pytest.raises(FencedError):
        await doomed.call(0, "push", messages[0])
    for routes in cluster.routes:
        assert routes.lose(Rank(2), 1, Step(max(ends)))
        assert not routes.lose(Rank(2), 1, Step(max(ends)))
    for step in range(steps, steps + 3):
        await take(others, step, pushed=step == steps)

    counted = max(ends) > steps
    assert await read(others[0]) == await alone(start_servers, steps, counted=counted)


async def take(workers: list[Worker], step: int, *, pushed: bool = False) -> None:
    """Take a step with all of these."""
    if not pushed:
        pushes = (w.push(part(w.rank, step), step=step, lr=0.1) for w in workers)
        await asyncio.gather(*pushes)
    for worker in workers:
        for server in range(len(worker.channels)):
            await confirm(worker, server, step + 1)
    for worker in workers:
        await worker.pull("flat", min_version=step + 1)


async def confirm(worker: Worker, server: int, step: int) -> None:
    """Say to a server that all have a worker's parts, as its next pull does."""
    fields = {"rank": worker.rank, "incarnation": worker.incarnation, "min_version": 0}
    parts = [{"table": "flat", "create": False}]
    message = Message(fields={**fields, "confirms": step, "parts": parts})
    await worker.call(server, "pull", message)


async def alone(start_servers: Start, steps: int, *, counted: bool) -> bytes:
    """Return what one server makes of the same, where nobody dies and the third one leaves."""
    cluster = await start_servers(1)
    workers = await crew(cluster, 3)
    for step in range(steps + 3):
        if step == steps + counted:
            await workers[2].ask("leave", step=step)
        for worker in workers[: 3 if step < steps + counted else 2]:
            await worker.push(part(worker.rank, step), step=step, lr=0.1)
    return await read(workers[0], min_version=steps + 3)


async def test_a_step_is_not_applied_before_all_parts_are_known_to_be_everywhere(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    ada, bob = await crew(cluster, 2, on_worker_loss="shrink")
    await ada.push(part(0, 0), step=0)
    await bob.push(part(1, 0), step=0)
    await confirm(ada, 0, 1)

    with pytest.raises(StepIncompleteError):
        await ada.pull("flat", min_version=1, timeout_s=0.3)

    await confirm(bob, 0, 1)
    await cluster.until(lambda facts: facts["tables"][0]["version"] == 1, server=0)
    assert cluster.routes[1].facts()["tables"][0]["version"] == 0


async def test_late_workers_of_async_begin_with_the_same_step_everywhere(
    start_servers: Start,
) -> None:
    """Each let the two begin with the slowest that it knew: they waited for each other."""
    cluster = await start_servers(2, elastic=True)
    workers = [cluster.worker(rank) for rank in range(3)]
    ada, bob, cal = workers
    await ada.declare(ROWS, FLAT, max_staleness=0)
    messages = ada.push_messages(part(0, 4), step=4)
    await ada.call(0, "push", messages[0])
    began = [max(a.fields["step"] for a in await w.declare(ROWS, FLAT, max_staleness=0))
             for w in (bob, cal)]  # fmt: skip
    await ada.call(1, "push", messages[1])
    assert began == [5, 5], "as far as the first server knows; the other one says 0"

    for worker, step in zip((bob, cal), began, strict=True):
        worker.sequence += 1
        for again in (False, True):
            answers = await worker.ask("begin", step=step, sequence=worker.sequence)
            assert [answer.fields["duplicate"] for answer in answers] == [again, again]

    for worker in workers:
        await worker.ask("wait_turn", step=5)
    assert [r.facts()["members"] for r in cluster.routes] == [
        [{"rank": rank, "steps": 5} for rank in range(3)]
    ] * 2
