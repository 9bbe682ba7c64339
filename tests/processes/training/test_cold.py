"""A table whose rows are on disk learns what one in memory learns, and is saved and loaded."""

from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.manifest import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_cold.py"
BUDGET = "cold=20000"
"""Some 200 rows of a process."""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_on_disk_are_those_that_memory_would_have(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    on_disk = {
        "PARAMFLEET_PSERVER__TABLE_MEMORY_BUDGETS": BUDGET,
        "PARAMFLEET_PSERVER__COLD_DIR": str(tmp_path / "cold"),
        "PARAMFLEET_CHECKPOINT_DIRS": str(tmp_path),
    }
    saved = tmp_path / "saved"

    first = jobs.run(SCRIPT, "--mode", mode, "--save", str(saved), **on_disk).results
    words = ["--mode", mode, "--load", str(saved), "--prefetch"]
    again = jobs.run(SCRIPT, *words, **on_disk).results

    for result in (*first, *again):
        assert result["equal"]
    assert first[0]["moved"] > 1000
    assert again[0]["moved"] >= first[0]["moved"]
    assert again[0]["asked"] > 1000
    rows = {
        table: sum(each.rows for each in read_manifest(saved).files if each.table == table)
        for table in ("hot", "cold")
    }
    assert rows["hot"] == rows["cold"] > 1000
    assert not list((tmp_path / "cold").iterdir())


def test_geo_refuses_a_budget_by_name(jobs: Any, tmp_path: Path) -> None:
    running = jobs.start(
        "train_long.py",
        *("--mode", "geo", "--until", str(tmp_path / "enough")),
        PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES="1000000",
        PARAMFLEET_PSERVER__COLD_DIR=str(tmp_path / "cold"),
    )

    running.wait_for("worker0", "mode geo needs all rows in the memory of the pservers")
