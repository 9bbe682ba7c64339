"""The workers of an elastic job join when they declare, and are lost while others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.errors.served import (
    ElasticModeError,
    FencedError,
    ModeMismatchError,
    UnknownWorkerError,
)
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

SUM = OptimizerSpec(rule="sum")
ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=SUM)
NOTHING = (np.empty(0, np.int64), np.empty((0, 2), np.float32))


def rows(changes: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([[v, v] for v in changes.values()], np.float32).reshape(-1, 2)
    return np.array(list(changes), np.int64), values


async def crew(cluster: Cluster, num: int, **terms: Any) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(ROWS, worker_num=num, **terms)
    return workers


def lose(cluster: Cluster, rank: int, incarnation: int = 1) -> list[bool]:
    return [routes.lose(Rank(rank), incarnation) for routes in cluster.routes]


async def test_who_is_lost_is_waited_for_no_more_and_refused_from_then_on(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1, elastic=True)
    ada, bob = await crew(cluster, 2, max_staleness=0)

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.ask("wait_turn", step=1))
        await cluster.until(lambda facts: facts["parked"])
        new, again = lose(cluster, 1), lose(cluster, 1)

    assert (new, again) == ([True], [False])
    assert waiting.result()[0].fields["slowest"] is None
    for late in (
        bob.push({"rows": rows({1: 1.0})}),
        bob.ask("wait_turn", step=0),
        bob.ask("leave", step=0),
        bob.declare(ROWS, worker_num=2, max_staleness=0),
    ):
        with pytest.raises(FencedError):
            await late


async def test_who_is_fenced_before_its_loss_is_known_is_waited_for_no_more(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1, elastic=True)
    ada, _ = await crew(cluster, 2, max_staleness=0)
    cluster.routes[0].fence(Rank(1), 2)  # as a new owner does that reads the registry

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.ask("wait_turn", step=1))
        await cluster.until(lambda facts: facts["parked"])
        new, again = lose(cluster, 1), lose(cluster, 1)
        if new == [False]:
            waiting.cancel()

    assert (new, again) == ([True], [False])
    assert waiting.result()[0].fields["slowest"] is None


async def test_a_newer_life_is_not_lost_with_its_former_self(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)
    await crew(cluster, 2)
    successor = cluster.worker(1, incarnation=3)
    await successor.declare(ROWS, worker_num=2)

    assert lose(cluster, 1) == [False]
    await successor.push({"rows": rows({1: 1.0})})


async def test_who_was_lost_before_the_first_declaration_is_refused(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1, elastic=True)
    lose(cluster, 1)
    await cluster.worker(0).declare(ROWS, worker_num=2)

    with pytest.raises(FencedError):
        await cluster.worker(1).declare(ROWS, worker_num=2)


async def test_a_late_worker_counts_on_from_the_slowest(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)
    ada, bob = await crew(cluster, 2, max_staleness=1)
    await ada.push({"rows": rows({1: 1.0})}, step=9)
    await bob.push({"rows": rows({1: 1.0})}, step=4)

    (late,) = await cluster.worker(2).declare(ROWS, worker_num=3, max_staleness=1)

    assert late.fields["step"] == 5
    assert {"rank": 2, "steps": 5} in cluster.routes[0].facts()["members"]


async def test_only_the_number_of_workers_may_differ(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)
    await crew(cluster, 1)
    late = cluster.worker(1)
    await late.declare(ROWS, worker_num=2)

    with pytest.raises(ModeMismatchError):
        await late.declare(ROWS, mode="geo", worker_num=2)
    stranger = cluster.worker(2)
    stranger.specs = late.specs
    with pytest.raises(UnknownWorkerError):
        await stranger.pull("rows", [1])


async def test_sync_is_refused_with_both_options(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)

    with pytest.raises(ElasticModeError, match=r"a_sync = False.*elastic = True"):
        await cluster.worker(0).declare(ROWS, mode="sync", worker_num=1)


async def test_gpubox_is_taken_from_a_worker_that_is_alone(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)

    with pytest.raises(ElasticModeError, match=r"gpubox.*elastic = True"):
        await cluster.worker(0).declare(ROWS, mode="gpubox", worker_num=2)

    await cluster.worker(0).declare(ROWS, mode="gpubox", worker_num=1)
    await cluster.worker(0, incarnation=2).declare(ROWS, mode="gpubox", worker_num=1)


@pytest.mark.parametrize("incarnation", [1, 3])
async def test_a_late_geo_worker_hears_of_every_row(
    start_servers: Start, incarnation: int
) -> None:
    cluster = await start_servers(2, elastic=True)
    ada, bob = await crew(cluster, 2, mode="geo")
    await ada.exchange({"rows": rows({1: 1.0, 2: 2.0})})
    await bob.exchange({"rows": rows({3: 3.0})})
    rank = 2 if incarnation == 1 else 1
    late = cluster.worker(rank, incarnation=incarnation)

    await late.declare(ROWS, mode="geo", worker_num=3)
    received = (await late.exchange({"rows": NOTHING}))["rows"]
    await ada.exchange({"rows": rows({2: 1.0})})
    then = (await late.exchange({"rows": NOTHING}))["rows"]

    assert {i: float(row[0]) for i, row in received.rows.items()} == {1: 1.0, 2: 2.0, 3: 3.0}
    assert {i: float(row[0]) for i, row in then.rows.items()} == {2: 3.0}


async def test_the_lost_geo_worker_leaves_nothing_behind(start_servers: Start) -> None:
    cluster = await start_servers(1, elastic=True)
    ada, bob = await crew(cluster, 2, mode="geo")
    lose(cluster, 1)

    await ada.exchange({"rows": rows({1: 1.0})})

    with pytest.raises(FencedError):
        await bob.exchange({"rows": NOTHING})
    np.testing.assert_array_equal(await ada.pull("rows", [1]), [[1, 1]])
