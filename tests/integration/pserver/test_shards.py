"""What a server says of its shards: how many rows, and how many were read and changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
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
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import pack_ids
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

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


@pytest.mark.parametrize("op", ["pull", "push", "exchange"])
@pytest.mark.parametrize("packed", [False, True])
async def test_ids_under_shards_of_others_are_refused_and_nothing_changed(
    start_servers: Start, op: str, packed: bool
) -> None:
    cluster = await start_servers(2)
    worker = cluster.worker()
    mode = "geo" if op == "exchange" else "async"
    summed = replace(ROWS, optimizer=OptimizerSpec(rule="sum" if mode == "geo" else "sgd"))
    await worker.declare(summed, mode=mode)
    ids = np.arange(4096, dtype=np.int64)
    both = {"rows": (ids, np.ones((4096, 4), np.float32))}
    if op == "pull":
        parts = [{"table": "rows", "create": True}]
        fields = {"rank": 0, "min_version": 0, "parts": parts}
        message = Message(fields=fields, tensors=worker.part_of(1, 0, "rows", ids)[1])
    elif op == "push":
        message = worker.push_messages(both, step=0)[1]
    else:
        extra = {"ack": 0, "max_rows": 9, "lr": 1.0}
        messages = worker.messages(both, tensor="deltas", extra=lambda *_: extra, step=0)
        message = messages[1]
    good = dict(message.tensors)
    wrong = good | {"0.offsets": good["0.offsets"].copy()}
    wrong["0.offsets"][1] += 1
    for tensors in (wrong, good):
        if packed:
            ids_in_few_bytes = pack_ids(tensors["0.ids"], tensors["0.offsets"])
            assert ids_in_few_bytes is not None
            tensors["0.ids"] = ids_in_few_bytes
            message.fields["parts"][0]["ids"] = "delta"

    with pytest.raises(MalformedMessageError, match=r"each id into the one of \d+ shards"):
        await worker.call(1, op, Message(fields=message.fields, tensors=wrong))

    assert sum(routes.facts()["tables"][0]["rows"] for routes in cluster.routes) == 0
    await worker.call(1, op, Message(fields=message.fields, tensors=good))
    assert cluster.routes[1].facts()["tables"][0]["rows"] == good["0.offsets"][-1]


async def test_known_and_other_ids_under_shards_of_others_are_refused(
    start_servers: Start,
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(ROWS)
    _, good = worker.part_of(0, 0, "rows", np.arange(64, dtype=np.int64))
    none, ends = np.empty(0, np.int64), good["0.offsets"]
    part = {"table": "rows", "create": True, "ids": "known", "book": 7, "base": 0}

    async def pull(**tensors: np.ndarray) -> Message:
        named = {f"0.{name}": tensor for name, tensor in tensors.items()}
        fields = {"rank": 0, "min_version": 0, "parts": [part]}
        return await worker.call(0, "pull", Message(fields=fields, tensors=named))

    wrong = np.zeros_like(ends)
    wrong[-1] = ends[-1]
    with pytest.raises(MalformedMessageError, match=r"'0\.ids'"):
        await pull(numbers=none, known=np.zeros_like(ends), ids=good["0.ids"], offsets=wrong)
    await pull(numbers=none, known=np.zeros_like(ends), ids=good["0.ids"], offsets=ends)
    del part["base"]
    numbers = np.arange(64, dtype=np.int64)
    with pytest.raises(MalformedMessageError, match=r"'0\.numbers'"):
        await pull(numbers=numbers, known=wrong, ids=none, offsets=wrong)
    await pull(numbers=numbers, known=ends, ids=none, offsets=ends)
