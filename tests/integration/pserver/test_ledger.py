"""The ledger: whatever is lost, doubled or reordered, the sums are exact."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.faults import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SUM = OptimizerSpec(rule="sum")
ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=SUM)
FLAT = TableSpec(name="flat", kind="dense", size=11, optimizer=SUM)
NUM_IDS, NUM_STEPS, NUM_WORKERS = 30, 12, 3


def hostile(dice: random.Random, op: str, num: int) -> FaultPlan:
    """Lose a fifth of the replies, double a fifth of the requests, lose some requests."""
    plan = FaultPlan()
    for nth in range(1, num):
        fate = dice.random()
        if fate < 0.2:
            plan.drop_reply(of=op, nth=nth)
        elif fate < 0.4:
            plan.duplicate_request(of=op, nth=nth)
        elif fate < 0.45:
            plan.drop_request(of=op, nth=nth)
    return plan


def entry(dice: np.random.Generator) -> dict[str, Any]:
    ids = dice.integers(0, NUM_IDS, 8)
    numbers = dice.integers(-9, 10, (8, 2)).astype(np.float32)
    return {"rows": (ids, numbers), "flat": dice.integers(-9, 10, 11).astype(np.float32)}


def totals(entries: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    rows, flat = np.zeros((NUM_IDS, 2), np.float32), np.zeros(11, np.float32)
    for each in entries:
        np.add.at(rows, *each["rows"])
        flat += each["flat"]
    return rows, flat


async def taken_by(worker: Worker) -> list[Any]:
    """Return which changes each pserver has taken, by worker."""
    answers = await worker.ask("hold", cut="ledger", for_s=0, targets=[])
    return [sorted(answer.fields["taken"]) for answer in answers]


async def compare(worker: Worker, entries: list[dict[str, Any]]) -> None:
    rows, flat = totals(entries)
    np.testing.assert_array_equal(await worker.pull("rows", list(range(NUM_IDS))), rows)
    np.testing.assert_array_equal(await worker.pull("flat"), flat)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_async_pushes_sum_exactly(start_servers: Start, seed: int) -> None:
    dice, plan = np.random.default_rng(seed), hostile(random.Random(seed), "push", 60)
    cluster = await start_servers(2, faults=plan)
    workers = [cluster.worker(rank) for rank in range(NUM_WORKERS)]
    for worker in workers:
        await worker.declare(ROWS, FLAT, worker_num=NUM_WORKERS)
    entries = [[entry(dice) for _ in range(NUM_STEPS)] for _ in workers]
    late = (5, 17, 30)
    for nth in late:
        plan.delay_reply(of="push", nth=nth)

    async def work(worker: Worker, mine: list[dict[str, Any]]) -> None:
        pushes = [worker.push_messages(each, step=step) for step, each in enumerate(mine)]
        random.Random(seed).shuffle(pushes)
        async with asyncio.TaskGroup() as tasks:
            for push in pushes:
                tasks.create_task(worker.send("push", push))

    async def release() -> None:
        held = [plan.held_reply(of="push", nth=nth) for nth in late]
        for reply in held:
            await reply.held.wait()
        for reply in held:
            reply.release()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(release())
        for worker, mine in zip(workers, entries, strict=True):
            tasks.create_task(work(worker, mine))

    assert {fired.kind for fired in plan.fired} == {
        "drop_reply",
        "duplicate_request",
        "drop_request",
        "delay_reply",
    }
    for taken in await taken_by(workers[0]):
        assert taken == [[each.rank, 1, NUM_STEPS + 1, [], []] for each in workers]
    await compare(workers[0], [each for mine in entries for each in mine])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_sync_pushes_sum_exactly(start_servers: Start, seed: int) -> None:
    dice, plan = np.random.default_rng(seed), hostile(random.Random(seed), "push", 60)
    cluster = await start_servers(2, faults=plan)
    workers = [cluster.worker(rank) for rank in range(2)]
    for worker in workers:
        await worker.declare(ROWS, FLAT, mode="sync", worker_num=2)
    entries = [[entry(dice) for _ in range(NUM_STEPS)] for _ in workers]

    async def work(worker: Worker, mine: list[dict[str, Any]]) -> None:
        for step, each in enumerate(mine):
            await worker.push(each, step=step)
            await worker.pull("flat", min_version=step + 1)

    async with asyncio.TaskGroup() as tasks:
        for worker, mine in zip(workers, entries, strict=True):
            tasks.create_task(work(worker, mine))

    assert plan.fired
    rows, flat = totals([each for mine in entries for each in mine])
    everything = list(range(NUM_IDS))
    got = await workers[0].pull("rows", everything, min_version=NUM_STEPS)
    np.testing.assert_array_equal(2 * got, rows)
    got = await workers[0].pull("flat", min_version=NUM_STEPS)
    np.testing.assert_array_equal(2 * got, flat)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_geo_exchanges_sum_exactly_and_a_listener_hears_it_all(
    start_servers: Start, seed: int
) -> None:
    dice, plan = np.random.default_rng(seed), hostile(random.Random(seed), "exchange", 90)
    cluster = await start_servers(2, faults=plan)
    workers = [cluster.worker(rank) for rank in range(NUM_WORKERS)]
    for worker in workers:
        await worker.declare(ROWS, FLAT, mode="geo", worker_num=NUM_WORKERS)
    *writers, listener = workers
    entries = [[entry(dice) for _ in range(NUM_STEPS)] for _ in writers]
    received: dict[int, np.ndarray] = {}

    async def write(writer: Worker, mine: list[dict[str, Any]]) -> None:
        for step, each in enumerate(mine):
            await writer.exchange(each, step=step, max_rows=5)

    async def listen() -> bool:
        reported = await listener.exchange(nothing(), max_rows=3)
        received.update(reported["rows"].rows)
        return reported["rows"].more

    async with asyncio.TaskGroup() as tasks:
        for writer, mine in zip(writers, entries, strict=True):
            tasks.create_task(write(writer, mine))
        for _ in range(NUM_STEPS):
            await listen()
    while await listen():
        pass

    assert plan.fired
    everything = [each for mine in entries for each in mine]
    await compare(listener, everything)
    one, two = await taken_by(listener)
    assert one == two
    assert all(each[2:] == [NUM_STEPS + 1, [], []] for each in one[:-1])
    touched = sorted({int(row) for each in everything for row in each["rows"][0]})
    assert sorted(received) == touched
    rows, _ = totals(everything)
    np.testing.assert_array_equal([received[row] for row in touched], rows[touched])


def nothing() -> dict[str, Any]:
    return {
        "rows": (np.empty(0, np.int64), np.empty((0, 2), np.float32)),
        "flat": np.zeros(11, np.float32),
    }
