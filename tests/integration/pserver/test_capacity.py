"""A change that meets a full shard changes nothing at all, and can be sent again."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.core.limits import TableLimits
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors.served import TablesDamagedError
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

DIM, SHARDS, ROOM = 2, 8, 50
SUM = OptimizerSpec(rule="sum")
FLAT = TableSpec(name="flat", kind="dense", size=13, optimizer=SUM)
ROWS = TableSpec(name="rows", kind="sparse", dim=DIM, optimizer=SUM)
MORE = TableSpec(name="more", kind="sparse", dim=DIM, optimizer=SUM)


def ids_of(block: int, num: int, *, start: int = 0) -> np.ndarray:
    """Return ids of one of the two owners' shards, the same ones at each call."""
    routed = route(np.arange(40 * (num + start)), SHARDS)
    middle = int(routed.offsets[SHARDS // 2])
    own = routed.ids[middle:] if block else routed.ids[:middle]
    return np.sort(own)[start : start + num]


def part(*ids: np.ndarray, value: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    every = np.concatenate(ids)
    return every, np.full((len(every), DIM), value, np.float32)


def table_of(cluster: Cluster, name: str = "rows") -> SparseTable:
    table = cluster.routes[0]._store.find(name)
    assert isinstance(table, SparseTable)
    return table


def limit(cluster: Cluster, name: str = "rows", max_rows: int = ROOM) -> SparseTable:
    """Let each block of a table have room for few rows."""
    table = table_of(cluster, name)
    small = cluster.routes[0]._store.build(table.spec)
    assert isinstance(small, SparseTable)
    small.blocks = tuple(
        block._replace(rows=SparseShard(table.spec, max_rows=max_rows))
        for block in small.blocks
    )
    table.adopt(small)
    return table


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
@pytest.mark.parametrize("num_ids", [100, 20_000])
async def test_a_change_that_fails_in_its_middle_ends_the_training(
    start_servers: Start, mode: str, num_ids: int
) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, FLAT, ROWS, mode=mode)
    table = table_of(cluster)  # it has less room than it counts on: as if a page overflowed
    table.blocks = tuple(b._replace(rows=SparseShard(ROWS, max_rows=1)) for b in table.blocks)
    parts = {"flat": np.ones(13, np.float32), "rows": part(np.arange(num_ids))}
    change = ada.push if mode == "async" else ada.exchange

    with pytest.raises(TablesDamagedError, match=r"was applied in part: .*rows") as first:
        await change(parts, step=3)
    assert first.value.step == 3

    again(ada)
    for refused in (change(parts, step=3), ada.pull("flat")):
        with pytest.raises(TablesDamagedError, match="step 3 was applied in part"):
            await refused
    assert table._capacity.num_claimed == 0


def rows_of(table: SparseTable) -> list[int]:
    return [block.rows.num_rows for block in table.blocks]


async def crew(cluster: Cluster, num: int, *specs: TableSpec, mode: str) -> list[Worker]:
    workers = [cluster.worker(rank) for rank in range(num)]
    for worker in workers:
        await worker.declare(*specs, mode=mode, worker_num=num)
    return workers


def again(worker: Worker) -> None:
    """Let the next message carry the sequence of the one before."""
    worker.sequence -= 1


async def together(cluster: Cluster, *calls: Awaitable[Any]) -> list[Any]:
    """Return the outcomes of calls that all reach the server before its owners act."""
    owners, gate = cluster.routes[0]._owners, threading.Event()

    def wait() -> None:
        gate.wait(timeout=10)

    held = owners.start(Job(owner, 1 << 20, wait) for owner in range(len(owners)))
    outcomes = asyncio.gather(*calls, return_exceptions=True)
    watcher = cluster.worker()
    for _ in range(3):  # each is answered after what came before it
        await watcher.ask("status")
    gate.set()
    await held
    return await outcomes


async def all_values(worker: Worker, table: SparseTable) -> dict[int, list[float]]:
    ids = np.concatenate([block.rows.ids() for block in table.blocks])
    values = await worker.pull(table.spec.name, ids.tolist())
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


async def test_an_async_push_that_meets_a_full_block_changes_no_table(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, FLAT, MORE, ROWS, mode="async")
    table = limit(cluster)
    full = ids_of(0, ROOM)
    await ada.push({"rows": part(full)})
    before = await all_values(ada, table)
    facts = cluster.routes[0].facts()
    refused = {
        "flat": np.ones(13, np.float32),
        "more": part(ids_of(0, 9)),
        "rows": part(full[:5], ids_of(0, 1, start=ROOM), ids_of(1, 9)),
    }

    with pytest.raises(
        CapacityError, match="table 'rows', shard 0: new rows don't fit beside its 50"
    ):
        await ada.push(refused, step=1)

    assert rows_of(table) == [ROOM, 0]
    assert rows_of(table_of(cluster, "more")) == [0, 0]
    assert await all_values(ada, table) == before
    assert (await ada.pull("flat")).tolist() == [0.0] * 13
    assert cluster.routes[0].facts()["members"] == facts["members"]

    again(ada)
    (reply,) = await ada.push({**refused, "rows": part(full[:5], ids_of(1, 9))}, step=1)
    assert reply.fields["duplicate"] is False
    assert reply.fields["versions"] == [1, 1, 2]
    assert (await ada.pull("rows", full[:6].tolist()))[:, 0].tolist() == [2, 2, 2, 2, 2, 1]


async def test_known_ids_need_no_room(start_servers: Start) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, ROWS, mode="async")
    table = limit(cluster)
    most = ids_of(0, ROOM - 2)
    await ada.push({"rows": part(most)})

    (reply,) = await ada.push({"rows": part(ids_of(0, ROOM), most)}, step=1)

    assert reply.fields["duplicate"] is False
    assert rows_of(table) == [ROOM, 0]
    values = await all_values(ada, table)
    assert sorted(values[i][0] for i in ids_of(0, ROOM).tolist()) == [1.0] * 2 + [3.0] * 48


async def test_of_two_pushes_for_the_last_rows_one_is_applied_whole(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, ROWS, mode="async")
    table = limit(cluster)
    await ada.push({"rows": part(ids_of(0, ROOM - 10))})

    outcomes = await together(
        cluster,
        ada.push({"rows": part(ids_of(0, 8, start=ROOM), ids_of(1, 5))}, step=1),
        bob.push({"rows": part(ids_of(0, 8, start=ROOM + 8), ids_of(1, 5))}, step=1),
    )

    assert sum(isinstance(outcome, CapacityError) for outcome in outcomes) == 1
    assert rows_of(table) == [ROOM - 2, 5]
    values = await all_values(ada, table)
    assert [values[i][0] for i in ids_of(1, 5).tolist()] == [1.0] * 5


async def test_two_pushes_that_create_the_same_last_rows_are_both_applied(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, ROWS, mode="async")
    table = limit(cluster)
    await ada.push({"rows": part(ids_of(0, ROOM - 8))})
    last = ids_of(0, 8, start=ROOM - 8)

    pushes = [worker.push({"rows": part(last)}, step=1) for worker in (ada, bob)]
    outcomes = await together(cluster, *pushes)

    assert [reply.fields["duplicate"] for (reply,) in outcomes] == [False, False]
    values = await all_values(ada, table)
    assert [values[i][0] for i in last.tolist()] == [2.0] * 8


async def test_a_push_that_is_repeated_while_rows_are_counted_is_applied_once(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, ROWS, mode="async")
    table = limit(cluster)
    await ada.push({"rows": part(ids_of(0, ROOM))})
    (message,) = ada.push_messages({"rows": part(ids_of(0, 20))}, step=1)

    replies = await together(cluster, *(ada.call(0, "push", message) for _ in range(2)))

    assert sorted(reply.fields["duplicate"] for reply in replies) == [False, True]
    values = await all_values(ada, table)
    assert [values[i][0] for i in ids_of(0, 20).tolist()] == [2.0] * 20


async def test_a_push_that_memory_refuses_goes_on_when_there_is_some(
    start_servers: Start,
) -> None:
    """Of the same sequence: nothing of it was taken."""
    free = 1 << 40
    cluster = await start_servers(
        1, limits=TableLimits(), memory=lambda: Memory(total=1 << 40, free=free)
    )
    wide = TableSpec(name="wide", kind="sparse", dim=1024, optimizer=SUM)
    (ada,) = await crew(cluster, 1, wide, ROWS, mode="async")
    ids = ids_of(0, 6000)
    some = (ids[:10], np.ones((10, 1024), np.float32))
    await ada.push({"wide": some})
    every = (ids, np.ones((6000, 1024), np.float32))

    free = (1 << 40) // 10 + 5000  # of which a tenth stays free
    with pytest.raises(TableMemoryError, match="table 'wide': 5,990 more rows x 4,132 bytes"):
        await ada.push({"rows": part(ids_of(1, 3)), "wide": every}, step=1)
    assert rows_of(table_of(cluster)) == [0, 0]

    free = 1 << 40
    again(ada)
    (reply,) = await ada.push({"rows": part(ids_of(1, 3)), "wide": every}, step=1)
    assert reply.fields["duplicate"] is False
    assert (await ada.pull("wide", ids[9:11].tolist()))[:, 0].tolist() == [2.0, 1.0]


async def test_a_pull_that_meets_a_full_block_creates_no_row(start_servers: Start) -> None:
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, ROWS, mode="async")
    table = limit(cluster)
    await ada.pull("rows", ids_of(0, ROOM).tolist(), create=True)
    wanted = np.concatenate([ids_of(0, 1, start=ROOM), ids_of(1, 3)])

    with pytest.raises(CapacityError):
        await ada.pull("rows", wanted.tolist(), create=True)

    assert rows_of(table) == [ROOM, 0]
    await ada.pull("rows", wanted.tolist())
    await ada.pull("rows", wanted[1:].tolist(), create=True)
    assert rows_of(table) == [ROOM, 3]


async def test_a_push_of_sync_that_meets_a_full_block_is_refused_before_it_is_kept(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, FLAT, ROWS, mode="sync")
    table = limit(cluster)
    flat = np.ones(13, np.float32)
    await ada.push({"flat": flat, "rows": part(ids_of(0, ROOM - 5))}, step=0)

    with pytest.raises(CapacityError):
        await bob.push({"flat": flat, "rows": part(ids_of(0, 6, start=ROOM))}, step=0)

    assert cluster.routes[0].facts()["waiting_for"] == [1]
    again(bob)
    (reply,) = await bob.push({"flat": flat, "rows": part(ids_of(0, ROOM))}, step=0)
    assert reply.fields["duplicate"] is False
    assert (await ada.pull("flat", min_version=1)).tolist() == [1.0] * 13
    assert rows_of(table) == [ROOM, 0]


async def test_what_a_full_block_refuses_in_geo_is_told_to_nobody(start_servers: Start) -> None:
    cluster = await start_servers(1)
    ada, bob = await crew(cluster, 2, FLAT, MORE, ROWS, mode="geo")
    table = limit(cluster)
    await ada.exchange({"rows": part(ids_of(0, ROOM))})
    nothing: Any = part(ids_of(0, 0))
    await bob.exchange({"rows": nothing})
    await bob.exchange({"rows": nothing})  # acknowledges
    refused = {
        "flat": np.ones(13, np.float32),
        "more": part(ids_of(0, 9)),
        "rows": part(ids_of(0, 3), ids_of(0, 1, start=ROOM), ids_of(1, 9)),
    }

    with pytest.raises(CapacityError):
        await ada.exchange(refused, step=1, damping=0.5, guarded_steps=1)

    assert rows_of(table) == [ROOM, 0]
    quiet = {"flat": np.zeros(13, np.float32), "more": nothing, "rows": nothing}
    received = await bob.exchange(quiet, step=1)
    assert received["flat"].dense is not None
    assert received["flat"].dense.tolist() == [0.0] * 13
    assert received["rows"].rows == received["more"].rows == {}

    again(ada)
    await ada.exchange({**refused, "rows": part(ids_of(0, 3), ids_of(1, 9))}, step=1)
    received = await bob.exchange(quiet, step=2)
    assert sorted(received["rows"].rows) == sorted([*ids_of(0, 3), *ids_of(1, 9)])
    assert sorted(received["more"].rows) == sorted(ids_of(0, 9))


async def test_localsgd_changes_no_dense_table_where_rows_find_no_room(
    start_servers: Start,
) -> None:
    cluster = await start_servers(1)
    sgd = TableSpec(name="flat", kind="dense", size=13)
    (ada,) = await crew(cluster, 1, sgd, ROWS, mode="localsgd")
    limit(cluster)
    refused = {"flat": np.ones(13, np.float32), "rows": part(ids_of(0, ROOM + 1))}

    with pytest.raises(CapacityError):
        await ada.exchange(refused)

    assert (await ada.pull("flat")).tolist() == [0.0] * 13
    again(ada)
    received = await ada.exchange({**refused, "rows": part(ids_of(0, ROOM))})
    assert received["flat"].dense is not None
    assert received["flat"].dense.tolist() == [-1.0] * 13


async def test_no_room_stays_claimed_when_all_is_done(start_servers: Start) -> None:
    """The last row of each block is still to be had."""
    cluster = await start_servers(1)
    (ada,) = await crew(cluster, 1, ROWS, mode="async")
    table = limit(cluster)
    for step in range(5):
        await ada.push({"rows": part(ids_of(0, 30), ids_of(1, 30))}, step=step)
        await ada.pull("rows", ids_of(0, 30).tolist(), create=True)
        with pytest.raises(CapacityError):
            await ada.push({"rows": part(ids_of(0, ROOM + 1))}, step=step + 1)

    await ada.push({"rows": part(ids_of(0, ROOM), ids_of(1, ROOM))}, step=9)

    assert rows_of(table) == [ROOM, ROOM]
