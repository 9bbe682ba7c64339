"""Which tables have rows on disk, and whose folders are removed."""

from pathlib import Path

import numpy as np
import pytest

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.durability.cold_rows import ColdFolder, ColdTables
from paramfleet_pserver.durability.locking import FolderLock
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.spec import TableSpec


def table(name: str) -> TableSpec:
    return TableSpec(name=name, kind="sparse", dim=2, num_shards=1)


def check(arithmetic: str, num_bytes: int) -> None:
    """Have memory for everything."""


def test_a_process_removes_what_processes_that_ended_have_left(tmp_path: Path) -> None:
    left, alive = tmp_path / "process-dead", tmp_path / "process-alive"
    lock = FolderLock(alive, "lock")
    (alive / "rows").touch()
    for path in (left / "users", tmp_path / "of somebody"):
        path.mkdir(parents=True)
        (path / "rows").touch()

    folder = ColdFolder(tmp_path)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"process-alive", "of somebody", folder.path.name}
    assert (alive / "rows").exists()
    folder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"process-alive", "of somebody"}
    lock.close()


def test_each_shard_has_a_folder_of_its_own_whatever_its_table_is_called(
    tmp_path: Path,
) -> None:
    folder = ColdFolder(tmp_path)

    paths = {folder.new(name) for name in ("../../etc", "a" * 300, "größe", ".", "t", "t")}

    assert len(paths) == 6
    for path in paths:
        assert path.parent == folder.path
        path.mkdir()
    folder.close()


def test_tables_with_a_budget_of_their_own_have_it(tmp_path: Path) -> None:
    folder = ColdFolder(tmp_path)
    tables = ColdTables(folder, budget_bytes=0, tables={"users": 10_000})

    shards = {name: tables.new_shard(table(name), check) for name in ("users", "items")}
    for shard in shards.values():
        shard.create(np.arange(1000))

    assert isinstance(shards["users"], TieredShard)
    assert shards["users"].cold.rows > 500
    assert not isinstance(shards["items"], TieredShard)
    del shards
    folder.close()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"memory_budget_bytes": 1000}, "cold_dir"),
        ({"table_memory_budgets": "users=1000"}, "cold_dir"),
        ({"table_memory_budgets": "users", "cold_dir": "/x"}, "table_memory_budgets"),
        ({"table_memory_budgets": "users=0", "cold_dir": "/x"}, "table_memory_budgets"),
        ({"table_memory_budgets": "=5", "cold_dir": "/x"}, "table_memory_budgets"),
        ({"table_memory_budgets": "users=1e9", "cold_dir": "/x"}, "table_memory_budgets"),
    ],
)
def test_a_budget_that_makes_no_sense_is_named(settings: dict[str, object], name: str) -> None:
    with pytest.raises(SettingError, match=name):
        PServerSettings(job="j", redis="redis://h", **settings)  # type: ignore[arg-type]


def test_budgets_of_tables_are_read_by_name() -> None:
    settings = PServerSettings(
        job="j",
        redis="redis://h",
        durability="async",
        data_dir="/data",
        table_memory_budgets=" users = 2000, a=b=30 ,",
    )

    assert settings.table_budgets == {"users": 2000, "a=b": 30}
    assert settings.cold_folder == "/data/cold"
