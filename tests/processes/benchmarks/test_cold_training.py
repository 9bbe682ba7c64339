"""The training with rows on disk runs, and is compared with memory."""

from pathlib import Path

import pytest

import cold_training

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_small_training_with_rows_on_disk_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("STEPS", 2), ("WARM", 1), ("PASSES", 2)):
        monkeypatch.setattr(cold_training, name, number)

    suite = cold_training.measure(tmp_path, num_rows=5_000, budget_s=0.0)

    rows = {row["case"]: row for row in suite["rows"]}
    assert list(rows) == list(cold_training.CASES)
    assert rows.pop(cold_training.DEVICE)["reads_per_s"].median > 0
    assert all(row["samples_per_s"].median > 0 for row in rows.values())
    tenth = rows[cold_training.TENTH]
    assert tenth["misses/sample"].median > 0
    assert tenth["vs_allowed"].median > 0
    assert all(row["cpu_us/sample"].median > 0 for row in rows.values())
    assert list(tmp_path.iterdir()) == []
