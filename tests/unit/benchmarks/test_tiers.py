"""The benchmark of the tier on disk runs, and names its limits."""

from pathlib import Path

import pytest

import tiers


@pytest.mark.slow
def test_a_small_tier_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without fio: it takes seconds

    suite = tiers.measure(tmp_path, num_rows=20_000, budget_s=0.0)

    figures = {row["case"]: row["figure"].median for row in suite["rows"]}
    assert len(figures) == 9
    assert all(figure > 0 for figure in figures.values())
    compared = [row["case"] for row in suite["rows"] if row["vs_device"] is not None]
    names = ["cold reads", "pass", "pass", "scratch pass"]
    assert [name.split(",")[0] for name in compared] == names
    assert suite["details"]["pages"] > 100
    assert list(tmp_path.iterdir()) == []
