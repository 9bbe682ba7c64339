"""Rows that a worker has brought into memory before it pulls them."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.pserver.cold import ColdShards

from paramfleet_pserver.requests.prefetch_requests import MAX_IDS
from paramfleet_pserver.tables.blocks import NewShard
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import FencedError, UnknownTableError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
FLAT = TableSpec(name="flat", kind="dense", size=16)
NUM = 2000


@pytest.fixture(scope="module", autouse=True)
def compiled_disk_kernels() -> None:
    """Compile them, or load them from the cache."""
    warm_disk()


@pytest.fixture
def some_rows() -> Iterator[NewShard]:
    """Return what makes shards with some hundred rows in memory."""
    with ColdShards(budget_bytes=30_000) as made:
        yield made


async def prefetch(worker: Any, ids: Any, table: str = "rows", **of: Any) -> dict[str, int]:
    """Have every server bring rows into memory; return the sums of what they answer."""
    answers = await worker.send("prefetch", messages(worker, ids, table, **of))
    return {
        name: sum(int(answer.fields[name]) for answer in answers)
        for name in ("tier", "brought", "left")
    }


def messages(worker: Any, ids: Any, table: str = "rows", **of: Any) -> list[Message]:
    fields = {"rank": worker.rank, "incarnation": worker.incarnation, "table": table, **of}
    wanted = np.asarray(ids, np.int64)
    return [
        Message(fields=fields, tensors=worker.part_of(server, 0, table, wanted)[1])
        for server in range(len(worker.channels))
    ]


def cold(cluster: Any, name: str) -> int:
    """Return a count of all servers' rows on disk."""
    tables = [routes.facts()["tables"][0] for routes in cluster.routes]
    return sum(table.get(f"cold_{name}", 0) for table in tables)


async def trained(cluster: Any, mode: str = "async") -> Any:
    worker = cluster.worker()
    await worker.declare(ROWS, FLAT, mode=mode)
    ids = np.arange(NUM)
    grads = np.repeat(ids[:, None] / NUM, 4, axis=1).astype(np.float32)
    for start in range(0, NUM, 100):
        some = slice(start, start + 100)
        await worker.push({"rows": (ids[some], grads[some])})
    return worker


async def test_a_pull_reads_nothing_from_disk_after_a_prefetch(
    start_servers: Any, some_rows: NewShard
) -> None:
    cluster = await start_servers(2, new_shard=some_rows)
    plain = await start_servers(2)
    worker, other = await trained(cluster), await trained(plain)
    ids = np.arange(1500, 1700)
    assert cold(cluster, "rows") > NUM / 10

    done = await prefetch(worker, np.append(ids, [NUM + 5]))  # one without a row

    assert done == {"tier": 2, "brought": cold(cluster, "prefetched"), "left": 0}
    assert done["brought"] > 20
    read, wanted = cold(cluster, "read"), cold(cluster, "wanted")
    rows = await worker.pull("rows", ids)
    assert (cold(cluster, "read"), cold(cluster, "wanted")) == (read, wanted)
    assert cold(cluster, "prefetched_used") == done["brought"]
    np.testing.assert_array_equal(rows, await other.pull("rows", ids))
    assert (await prefetch(worker, ids))["brought"] == 0


async def test_where_no_row_is_on_disk_nothing_is_done(
    start_servers: Any, some_rows: NewShard
) -> None:
    plain, young = await start_servers(2), await start_servers(2, new_shard=some_rows)
    worker = await trained(plain)
    assert await prefetch(worker, np.arange(9)) == {"tier": 0, "brought": 0, "left": 0}

    other = young.worker()
    await other.declare(ROWS)
    assert await prefetch(other, np.arange(9)) == {"tier": 0, "brought": 0, "left": 0}


async def test_at_most_half_of_memory_is_filled_ahead(
    start_servers: Any, some_rows: NewShard
) -> None:
    cluster = await start_servers(new_shard=some_rows)
    worker = await trained(cluster)
    in_memory = NUM - cold(cluster, "rows")

    done = await prefetch(worker, np.arange(NUM - in_memory))

    assert in_memory / 4 < done["brought"] < in_memory * 0.55  # a few more fit than there are
    assert done["left"] > NUM / 5
    assert done["tier"] == 1


async def test_others_are_served_between_two_slices(
    start_servers: Any, some_rows: NewShard
) -> None:
    cluster = await start_servers(new_shard=some_rows)
    worker, other = await trained(cluster), cluster.worker()
    other.specs = worker.specs
    ids = np.random.default_rng(0).permutation(NUM)

    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(prefetch(worker, ids)) for _ in range(2))
        pulls = [group.create_task(other.pull("rows", ids[:50])) for _ in range(5)]

    expected = await other.pull("rows", ids[:50])
    for pull in pulls:
        np.testing.assert_array_equal(pull.result(), expected)
    assert first.result()["tier"] == second.result()["tier"] == 1


async def test_it_says_what_is_left_when_the_time_is_over(
    start_servers: Any, some_rows: NewShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await start_servers(new_shard=some_rows)
    worker = await trained(cluster)
    prefetches = cluster.routes[0]._prefetches
    now = prefetches._clock.monotonic()
    ticks = iter(range(1000))
    late = type("Late", (), {"monotonic": lambda _: now + next(ticks)})()
    monkeypatch.setattr(prefetches, "_clock", late)

    done = await prefetch(worker, np.arange(NUM))

    assert done["brought"] + done["left"] > NUM / 2
    assert done["left"] > NUM / 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"table": "none"}, UnknownTableError),
        ({"table": "flat"}, MalformedMessageError),
        ({"table": 5}, MalformedMessageError),
        ({"rank": -1}, MalformedMessageError),
        ({"rank": 7}, FleetError),
        ({"incarnation": None}, MalformedMessageError),
        ({"ids": np.zeros(3, np.float32)}, RowShapeError),
        ({"ids": np.zeros((3, 1), np.int64)}, RowShapeError),
        ({"ids": np.zeros(MAX_IDS + 1, np.int64)}, MalformedMessageError),
        ({"ids": None}, MalformedMessageError),
        ({"offsets": None}, MalformedMessageError),
        ({"offsets": np.zeros(9, np.int64)}, MalformedMessageError),
        ({"offsets": np.zeros(2, np.int64)}, RowShapeError),
    ],
)
async def test_what_makes_no_sense_is_refused(
    start_servers: Any, some_rows: NewShard, change: dict[str, Any], error: type[FleetError]
) -> None:
    cluster = await start_servers(new_shard=some_rows)
    worker = await trained(cluster)
    [message] = messages(worker, [1, 2, 3])
    tensors, fields = dict(message.tensors), dict(message.fields)
    for name, value in change.items():
        if name not in {"ids", "offsets"}:
            fields[name] = value
        elif value is None:
            del tensors[f"0.{name}"]
        else:
            tensors[f"0.{name}"] = value

    with pytest.raises(error):
        await worker.call(0, "prefetch", Message(fields=fields, tensors=tensors))


async def test_a_former_incarnation_is_refused(start_servers: Any, some_rows: NewShard) -> None:
    cluster = await start_servers(new_shard=some_rows)
    worker = await trained(cluster)
    newer = cluster.worker(incarnation=2)
    newer.specs = worker.specs
    await prefetch(newer, [1])

    with pytest.raises(FencedError):
        await prefetch(worker, [1])


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
async def test_every_mode_has_it(start_servers: Any, mode: str) -> None:
    worker = (await start_servers()).worker()
    rule = OptimizerSpec(rule="sum" if mode == "geo" else "sgd")
    await worker.declare(replace(ROWS, optimizer=rule), mode=mode)

    assert (await prefetch(worker, [1, 2]))["brought"] == 0
