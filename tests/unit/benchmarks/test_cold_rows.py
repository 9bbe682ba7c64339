"""The benchmark of tables with rows on disk runs, and its shards have the same rows."""

from pathlib import Path

import pytest

import cold_rows


@pytest.mark.slow
def test_a_small_table_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without fio: it takes seconds

    suite = cold_rows.measure(tmp_path, num_rows=20_000, budget_s=0.0, warm_rounds=1)

    rows = {row["case"]: row for row in suite["rows"]}
    assert list(rows) == [*cold_rows.CASES, cold_rows.ALONE]
    assert all(row["samples_per_s"].median > 0 for row in rows.values() if len(row) > 2)
    assert rows[cold_rows.DEVICE]["reads_per_s"].median > 0
    assert rows[cold_rows.TENTH]["misses_per_sample"].median > 0
    assert rows[cold_rows.TENTH]["vs_device"].median > 0
    assert list(tmp_path.iterdir()) == []
