"""Which tables have rows on disk, and whose folders are removed."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.durability.cold_rows import ColdFolder, ColdTables
from paramfleet_shared.errors.tables import TierRowError
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.spec import TableSpec


def table(name: str) -> TableSpec:
    return TableSpec(name=name, kind="sparse", dim=2, num_shards=1)


def check(arithmetic: str, num_bytes: int) -> None:
    """Have memory for everything."""


def test_each_shard_has_a_folder_of_its_own_whatever_its_table_is_called(
    tmp_path: Path,
) -> None:
    folder = ColdFolder(tmp_path)

    paths = {folder.new(name) for name in ("../../etc", "a" * 300, "größe", ".", "t", "t")}

    assert len(paths) == 6
    for path in paths:
        assert path.parent == folder.path
        path.mkdir()
    folder.remove()


def test_tables_with_a_budget_of_their_own_have_it(tmp_path: Path) -> None:
    folder = ColdFolder(tmp_path)
    tables = ColdTables(folder, budget_bytes=0, tables={"users": 10_000})

    shards = {name: tables.new_shard(table(name), check, 0) for name in ("users", "items")}
    for shard in shards.values():
        shard.create(np.arange(1000))

    assert isinstance(shards["users"], TieredShard)
    assert shards["users"].cold.rows > 500
    assert not isinstance(shards["items"], TieredShard)
    del shards
    folder.remove()


def test_only_rows_that_may_go_to_a_disk_must_fit_it(tmp_path: Path) -> None:
    folder = ColdFolder(tmp_path)
    tables = ColdTables(folder, budget_bytes=0, tables={"users": 10_000})

    tables.check(replace(table("items"), dim=5000))
    tables.check(replace(table("users"), dim=4096))
    with pytest.raises(TierRowError, match="'users': a row has"):
        tables.check(replace(table("users"), dim=5000))

    folder.remove()


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


def test_folders_of_processes_that_ended_go_and_those_of_others_stay(tmp_path: Path) -> None:
    running = ColdFolder(tmp_path)
    left = tmp_path / "process-0123456789abcdef"
    (left / "users-00").mkdir(parents=True)
    (tmp_path / "process-logs").mkdir()
    (tmp_path / "process-logs" / "mine").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "process-fedcba9876543210").symlink_to(elsewhere)

    folder = ColdFolder(tmp_path)

    assert not left.exists()
    assert running.path.is_dir()
    assert (tmp_path / "process-logs" / "mine").is_file()
    assert not list(elsewhere.iterdir())
    folder.remove()
    running.remove()


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():  # who isn't root can give no folder away, but be another one
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    else:
        os.chown(tmp_path, 4321, -1)

    with pytest.raises(PermissionError, match=r"another user \(id \d+\): name a folder"):
        ColdFolder(tmp_path)

    assert not list(tmp_path.iterdir())
