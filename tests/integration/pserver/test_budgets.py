"""Budgets of single tables: which of them no table of a job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paramfleet_pserver.durability.cold_rows import ColdFolder, ColdTables
from paramfleet_pserver.tables.blocks import NewShard
from paramfleet_shared.tables.spec import TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import pytest
    from tests.integration.pserver.conftest import Cluster

    Start = Callable[..., Awaitable[Cluster]]

USERS = TableSpec(name="users", kind="sparse", dim=2)
ITEMS = TableSpec(name="items", kind="sparse", dim=2)
DENSE = TableSpec(name="layers", kind="dense", size=3)


async def test_a_budget_for_a_table_that_a_job_lacks_is_told_once(
    start_servers: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = ColdFolder(tmp_path)
    budgets = {"users": 5000, "item": 5000, "layers": 5000}
    tables = ColdTables(folder, budget_bytes=0, tables=budgets, origin="argument")
    maker = NewShard(tables.new_shard, tables.check, tables.note_tables)
    cluster = await start_servers(new_shard=maker)
    assert not caplog.records, "no table is known"

    for rank in range(2):
        await cluster.worker(rank).declare(USERS, ITEMS, DENSE, worker_num=2)

    told = [each.__dict__ for each in caplog.records if "budget" in each.getMessage()]
    assert [(each["table"], each["remedy"], each["origin"]) for each in told] == [
        ("item", "did you mean 'items'?", "argument"),
        ("layers", "leave it out", "argument"),
    ]
    folder.remove()
