"""What a server says of its shards: how many rows, and how many were read and changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.tables import shard_loads as shardloads
from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.spec import TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster

    Start = Callable[..., Awaitable[Cluster]]

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
FLAT = TableSpec(name="flat", kind="dense", size=21)


def by_shard(ids: np.ndarray, num_shards: int) -> np.ndarray:
    return np.diff(partition(ids, num_shards).offsets)


async def shards_of(cluster: Cluster, table: str) -> dict[int, dict[str, Any]]:
    """Return what the servers say, by shard; every shard is named by one of them."""
    found: dict[int, dict[str, Any]] = {}
    for routes in cluster.routes:
        await routes.count_rows()
        (facts,) = [each for each in routes.facts()["tables"] if each["name"] == table]
        assert facts["tier"] == "memory"
        found |= {shard["shard"]: shard for shard in facts["shards"]}
        assert sum(s["rows"] for s in facts["shards"]) == facts["rows"]
        assert sum(s["bytes"] for s in facts["shards"]) == pytest.approx(facts["bytes"], abs=8)
    return found


async def test_rows_reads_and_changes_are_counted_by_shard(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shardloads, "COUNTED_ROWS", 64)  # so that several looks are needed
    cluster = await start_servers(2)
    worker = cluster.worker()
    await worker.declare(ROWS, FLAT)
    num_shards = ROWS.num_shards
    ids, few = np.arange(500, dtype=np.int64), np.arange(3, dtype=np.int64)

    await worker.push({"rows": (ids, np.ones((500, 4), np.float32))}, lr=0.1)
    await worker.pull("rows", few.tolist())
    first = await shards_of(cluster, "rows")
    await worker.push({"rows": (ids + 500, np.ones((500, 4), np.float32))}, lr=0.1, step=1)
    await worker.pull("flat")
    again, flat = await shards_of(cluster, "rows"), await shards_of(cluster, "flat")

    made, read = by_shard(ids, num_shards), by_shard(few, num_shards)
    more = by_shard(ids + 500, num_shards)
    for shard in range(num_shards):
        assert first[shard]["rows"] == first[shard]["pushed"] == made[shard]
        assert first[shard]["pulled"] == read[shard]
        assert again[shard]["rows"] == made[shard] + more[shard]
    assert sum(shard["pulled"] for shard in flat.values()) == FLAT.size
    assert sum(shard["rows"] for shard in flat.values()) == FLAT.size


async def test_a_table_may_come_while_the_rows_of_others_are_counted(
    start_servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_time = shardloads.COUNTED_ROWS
    monkeypatch.setattr(shardloads, "COUNTED_ROWS", 1)  # it lasts until it may be done
    worker = (cluster := await start_servers(2)).worker()
    await worker.declare(ROWS)
    ids = np.arange(20_000, dtype=np.int64)
    await worker.push({"rows": (ids, np.ones((20_000, 4), np.float32))}, lr=0.1)

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(cluster.routes[0].count_rows())
        await worker.declare(ROWS, FLAT)
        assert not counting.done()
        monkeypatch.setattr(shardloads, "COUNTED_ROWS", at_a_time)

    found = await shards_of(cluster, "rows")
    assert sum(shard["rows"] for shard in found.values()) == 20_000


async def test_the_busiest_shards_come_first_and_are_few(start_servers: Start) -> None:
    cluster = await start_servers(1, num_shards=32)
    worker = cluster.worker()
    spec = TableSpec(name="many", kind="sparse", dim=2, num_shards=32)
    await worker.declare(spec)
    ids = np.arange(400, dtype=np.int64)
    busy = by_shard(ids, 32)
    hot = int(ids[0])

    await worker.push({"many": (ids, np.ones((400, 2), np.float32))}, lr=0.1)
    for _ in range(40):
        await worker.pull("many", [hot])

    (routes,) = cluster.routes
    await routes.count_rows()
    shards = routes.facts()["tables"][0]["shards"]
    uses = [shard["pulled"] + shard["pushed"] for shard in shards]
    assert len(shards) == shardloads.TOP_SHARDS
    assert uses == sorted(uses, reverse=True)
    assert shards[0]["pulled"] == 40
    assert uses[1] == max(n for s, n in enumerate(busy) if s != shards[0]["shard"])


async def test_rows_that_were_loaded_are_counted_anew(
    start_servers: Start, tmp_path: Path
) -> None:
    worker = (cluster := await start_servers(1, num_shards=4)).worker()
    spec = TableSpec(name="few", kind="sparse", dim=4, num_shards=4)
    await worker.declare(spec)
    await worker.push({"few": (np.arange(50), np.ones((50, 4), np.float32))}, lr=0.1)
    await shards_of(cluster, "few")
    (reply,) = await worker.ask("save", dirname=str(tmp_path))
    tables = tuple(SavedTable.from_wire(wire) for wire in reply.fields["tables"])
    files = tuple(SavedFile.from_wire(wire) for wire in reply.fields["files"])
    write_manifest(tmp_path, Manifest(tables=tables, files=files))
    await worker.push({"few": (np.arange(90), np.ones((90, 4), np.float32))}, lr=0.1, step=1)

    await worker.ask("load", dirname=str(tmp_path))

    loaded = await shards_of(cluster, "few")
    assert sum(shard["rows"] for shard in loaded.values()) == 50
