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

    figures = {row["case"]: row["samples_per_s"].median for row in suite["rows"]}
    assert list(figures) == list(cold_training.CASES)
    assert all(figure > 0 for figure in figures.values())
    assert list(tmp_path.iterdir()) == []
