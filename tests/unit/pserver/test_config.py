"""Settings of the pserver."""

import os
from pathlib import Path
from typing import Any

import pytest

from paramfleet_pserver.config import MAX_OWNERS, PServerSettings
from paramfleet_shared.settings.config import SettingError, resolve


def test_the_defaults_are_valid_and_take_a_part_of_the_machine() -> None:
    settings = PServerSettings()

    assert 1 <= settings.num_owners <= MAX_OWNERS
    assert PServerSettings(owner_threads=3).num_owners == 3


def test_where_rows_may_be_on_disk_there_are_more_owners_than_else(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    cold = {"cold_dir": str(tmp_path)}

    assert PServerSettings().num_owners == max(1, min(MAX_OWNERS, cores // 2))
    for budget in ({"memory_budget_bytes": 1 << 30}, {"table_memory_budgets": "ads=1000000"}):
        settings = PServerSettings(**cold, **budget)  # type: ignore[arg-type]
        assert settings.num_owners == max(min(cores, 4), min(MAX_OWNERS, cores // 2))
    few = PServerSettings(memory_budget_bytes=1 << 30, owner_threads=1, **cold)  # type: ignore[arg-type]
    assert few.num_owners == 1


def test_own_and_shared_fields_come_from_the_environment() -> None:
    resolved = resolve(
        PServerSettings,
        section="pserver",
        arguments={},
        environment={"PARAMFLEET_PSERVER__INDEX": "2", "PARAMFLEET_JOB": "mine"},
    )

    assert (resolved.value.index, resolved.value.job) == (2, "mine")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", -1),
        ("port", 70_000),
        ("admin_port", -1),
        ("advertise", "10.0.0.1"),
        ("advertise", "10.0.0.1:70000"),
        ("owner_threads", -1),
        ("drain_timeout_s", -0.5),
        ("job", "a job"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        PServerSettings(**{name: value})
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("users=0", "tables with their bytes"),
        ("users=1125899906842625", "tables with their bytes"),
        ("users=" + "9" * 5000, "tables with their bytes"),
        ("users=5, users = 6", "one budget for each table, and not two for users"),
    ],
)
def test_budgets_of_tables_that_can_not_be_are_named(text: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rule):
        PServerSettings(table_memory_budgets=text, cold_dir="cold")


def test_budgets_of_tables_are_read() -> None:
    found = PServerSettings(
        table_memory_budgets="a = 5, x=y=1125899906842624,", cold_dir="cold"
    )

    assert found.table_budgets == {"a": 5, "x=y": 1 << 50}
