"""Async with several workers: rates that begin small, and gradients that grow too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from paramfleet_shared.errors.served import ModeMismatchError
from paramfleet_shared.net.wire.message import MalformedMessageError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster

    Start = Callable[..., Awaitable[Cluster]]

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
FLAT = TableSpec(name="flat", kind="dense", size=21)
IDS = np.arange(40, dtype=np.int64)
GRADS = {"rows": (IDS, np.ones((40, 4), np.float32)), "flat": np.ones(21, np.float32)}


async def test_the_first_updates_of_two_workers_step_half_as_far(start_servers: Start) -> None:
    cluster = await start_servers(3)
    ada, bob = cluster.worker(0), cluster.worker(1)
    for worker in (ada, bob):
        await worker.declare(ROWS, FLAT, worker_num=2, async_rate="guarded")

    await ada.push(GRADS, lr=0.5)
    first = await ada.pull("rows", IDS.tolist()), await ada.pull("flat")
    await bob.push(GRADS, lr=0.5)
    second = await ada.pull("rows", IDS.tolist()), await ada.pull("flat")

    # 24 updates until the whole rate: the powers of 2 are 1 and 23/24.
    for before, after in zip(first, second, strict=True):
        np.testing.assert_array_equal(before, -0.25)
        np.testing.assert_allclose(after, -0.25 - 0.5 * 2 ** -(23 / 24), rtol=1e-6)


async def test_the_whole_rate_is_reached_after_twelve_updates_of_each(
    start_servers: Start,
) -> None:
    cluster = await start_servers(2)
    ada = cluster.worker(0)
    await ada.declare(ROWS, FLAT, worker_num=2, async_rate="guarded")
    for _ in range(24):
        await ada.push(GRADS, lr=0.5)
    before = await ada.pull("rows", IDS.tolist()), await ada.pull("flat")

    await ada.push(GRADS, lr=0.5)

    after = await ada.pull("rows", IDS.tolist()), await ada.pull("flat")
    moved = 0.5 * sum(2 ** -(1 - update / 24) for update in range(24))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(old, -moved, rtol=1e-5)
        np.testing.assert_allclose(new, old - 0.5, rtol=1e-6)


async def test_a_gradient_that_is_much_too_long_is_shortened(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada = cluster.worker(0)
    await ada.declare(ROWS, FLAT, worker_num=2, async_rate="guarded")
    for _ in range(24):
        await ada.push(GRADS, lr=0.0)
    long = {
        "rows": (IDS, np.full((40, 4), 8.0, np.float32)),
        "flat": np.full(21, 8, np.float32),
    }

    (before,) = await ada.ask("status")
    await ada.push(long, lr=0.5)
    (after,) = await ada.ask("status")

    facts = [
        {table["name"]: table for table in status.fields["tables"]}
        for status in (before, after)
    ]
    for name, parts in (("rows", facts[0]["rows"]["guarded"] // 24), ("flat", 1)):
        found = [(each[name]["guarded"], each[name]["shortened"]) for each in facts]
        assert found == [(24 * parts, 0), (25 * parts, parts)]
        assert [each[name]["rate_power"] for each in facts] == [0.0, 1.0]
    # To twice the usual length, with half the rate: much longer gradients halve it.
    np.testing.assert_allclose(await ada.pull("flat"), np.full(21, -0.5), rtol=1e-6)
    np.testing.assert_allclose(await ada.pull("rows", IDS.tolist()), -0.5, rtol=1e-6)


async def test_one_worker_steps_as_one_process(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada = cluster.worker(0)
    await ada.declare(ROWS, FLAT, worker_num=1, async_rate="guarded")
    total = 0.0
    for size in (1.0, 1.0, 1.0, 64.0, 0.5):
        grads = {"rows": (IDS, np.full((40, 4), size, np.float32))}
        await ada.push({**grads, "flat": np.full(21, size, np.float32)}, lr=0.5)
        total -= 0.5 * size

    np.testing.assert_array_equal(await ada.pull("rows", IDS.tolist()), np.float32(total))
    np.testing.assert_array_equal(await ada.pull("flat"), np.float32(total))


@pytest.mark.parametrize(("rule", "share"), [("adagrad", 0.5), ("adam", 1.0)])
async def test_adagrad_begins_with_its_nth_part_and_adam_with_the_whole(
    start_servers: Start, rule: Literal["adagrad", "adam"], share: float
) -> None:
    cluster = await start_servers(1)
    ada = cluster.worker(0)
    spec = TableSpec(name="flat", kind="dense", size=5, optimizer=OptimizerSpec(rule=rule))
    await ada.declare(spec, worker_num=2, async_rate="guarded")

    await ada.push({"flat": np.full(5, 3.0, np.float32)}, lr=0.5)

    np.testing.assert_allclose(await ada.pull("flat"), np.full(5, -0.5 * share), rtol=1e-6)


async def test_workers_that_disagree_on_the_rate_are_refused(start_servers: Start) -> None:
    cluster = await start_servers(1)
    await cluster.worker(0).declare(ROWS, worker_num=2, async_rate="guarded")

    with pytest.raises(ModeMismatchError, match="async_rate"):
        await cluster.worker(1).declare(ROWS, worker_num=2, async_rate="full")


async def test_a_rate_that_isnt_known_is_refused(start_servers: Start) -> None:
    cluster = await start_servers(1)
    with pytest.raises(MalformedMessageError, match="async_rate"):
        await cluster.worker(0).declare(ROWS, async_rate="none")
