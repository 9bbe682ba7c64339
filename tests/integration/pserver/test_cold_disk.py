"""A disk fails with rows on it: who asks gets them from a copy, or learns which disk it was."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.pserver.following import until
from tests.integration.pserver.planned import planned_job
from tests.unit.pserver.cold import ColdShards

from paramfleet_pserver.tables.blocks import NewShard
from paramfleet_shared.errors.tables import ColdDiskError, ColdRowsLostError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.disk.pages.files import PAGES_OFFSET
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.tables.warm import warm_all
from paramfleet_shared.testing.patience import LATE_S

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
NUM = 3000


@pytest.fixture(scope="module", autouse=True)
def compiled_disk_kernels() -> None:
    """Compile them, or load them from the cache."""
    warm_disk()


@pytest.fixture
def cold_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def few_rows(cold_folder: Path) -> Iterator[NewShard]:
    """Return what makes shards with some rows in memory."""
    with ColdShards(budget_bytes=20_000) as made:
        yield made


def fail(shard: Any) -> None:
    """Cut off all pages of a shard's rows on disk."""
    tier = shard._mover.tier
    tier.merge()
    os.truncate(Path(tier.path) / "pages", PAGES_OFFSET)


def blocks(routes: Any, table: str = "rows") -> list[Any]:
    return [block.rows for block in routes._store.find(table).blocks]


async def ask(worker: Any, what: str, ids: NDArray[np.int64]) -> None:
    if what == "pull":
        await worker.pull("rows", ids)
    elif what == "push":
        await worker.push({"rows": (ids, np.ones((len(ids), 4), np.float32))})
    else:
        about = {"rank": worker.rank, "incarnation": worker.incarnation, "table": "rows"}
        tensors = worker.part_of(0, 0, "rows", ids)[1]
        await worker.send("prefetch", [Message(fields=about, tensors=tensors)])


@pytest.mark.parametrize("asks", ["pull", "push", "prefetch"])
async def test_without_a_copy_the_error_names_the_disk(
    start_servers: Any, few_rows: NewShard, asks: str
) -> None:
    cluster = await start_servers(new_shard=few_rows)
    worker = cluster.worker()
    await worker.declare(ROWS)
    ids = np.arange(NUM)
    await worker.push({"rows": (ids, np.ones((NUM, 4), np.float32))})
    for shard in blocks(cluster.routes[0]):
        fail(shard)

    with pytest.raises(ColdRowsLostError, match="pages can't be read: the file ends") as lost:
        await ask(worker, asks, ids)

    assert "check the disk" in str(lost.value)
    assert not lost.value.retryable
    with pytest.raises(ColdRowsLostError):  # nothing is read of what may be in part
        await worker.pull("rows", ids[:1])
    assert cluster.routes[0].lost_rows is not None


@pytest.mark.slow
async def test_a_worker_goes_on_with_the_copy_when_a_disk_fails(
    redis_url: str, job_name: str, few_rows: NewShard
) -> None:
    warm_all()
    ids = list(range(NUM))
    async with planned_job(redis_url, job_name, lease_ttl_s=LATE_S, new_shard=few_rows) as job:
        worker = await job.worker()
        await worker.push(ids)
        await worker.pservers.settle()
        before = await worker.pull(ids)
        owner = next(each for each in job.processes if each.id == job.plan(1).owner)
        hosted = next(each for each in owner.host.groups if each.index == 1)
        for shard in blocks(hosted.routes):
            fail(shard)

        async def end() -> None:
            """End the process, as its program does."""
            await until(lambda: owner.failure)
            job.processes.remove(owner)
            await owner.close()

        async with asyncio.TaskGroup() as group:
            ending = group.create_task(end())
            pulling = group.create_task(worker.pull(ids))

        assert ending.done()
        assert isinstance(owner.failure, ColdRowsLostError)
        assert pulling.result() == before
        assert job.job.failure is None


def test_what_the_worker_asks_again_is_retryable() -> None:
    assert ColdDiskError.retryable
