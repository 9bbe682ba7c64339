"""The page and the plots that are made of what suites wrote."""

from pathlib import Path
from typing import Any

import pytest

from report import GOALS, page, plot, summary_of

RESULT: dict[str, Any] = {
    "benchmark": "path",
    "rows": [
        {"system": "ours", "in flight": 1, "steps/s": [300.0, 250.0, 310.5], "GB/s": 1.5},
        {"system": "redis", "in flight": 1, "steps/s": [12.0, 11.0, 13.0], "GB/s": None},
        {"half": "transport", "ms": 0.6},
    ],
    "summary": {"path_vs_redis": 25.5, "path_vs_grpcio": 1.25, "path_vs_limits": 0.7},
    "method": "Steps.",
    "details": {
        "missing": {"redis_c": "no hiredis"},
        "spread": {"path_vs_redis": [25.5, 20.0, 30.0]},
    },
    "wall_s": 75.2,
    "load_average_before": [0.5, 1.0, 2.0],
    "load_average_after": [1.5, 1.0, 2.0],
    "machine": {"processor": "A chip", "cores": 2, "versions": {"numpy": "2.4"}},
}
LOSSES: dict[str, Any] = {
    "benchmark": "compression",
    "rows": [],
    "summary": {"wire_bf16_auc_loss": 0.0004, "wire_int8_auc_loss": 0.01},
    "method": "",
    "failed": "it ended with 1",
}


def test_the_summary_has_every_headline_and_nothing_else() -> None:
    summary = summary_of({"path": RESULT})

    assert list(summary) == list(GOALS)
    assert summary["path_vs_redis"] == 25.5
    assert summary["geo_train_vs_single"] is None


def test_the_page_says_what_was_measured_and_what_was_to_be_reached() -> None:
    text = page({"path": RESULT, "compression": LOSSES}, ["path"])

    assert "| `path_vs_redis` | 25.5 (20..30) | at least 25 | yes |" in text
    assert "| `path_vs_grpcio` | 1.25 | at least 3 | no |" in text
    assert "| `geo_train_vs_single` |  | at least 1.7 | not measured |" in text
    assert "| `wire_bf16_auc_loss` | 0.0004 | at most 0.001 | yes |" in text
    assert "| `wire_int8_auc_loss` | 0.01 | at most 0.002 | no |" in text
    assert "| ours | 1 | 300 (250..310.5) | 1.5 |" in text
    assert "| `path_vs_limits` | 0.7 |" in text
    assert "Without `redis_c`: no hiredis." in text
    assert "Load average 0.5 before, 1.5 after; 75 s." in text
    assert "it ended with 1" in text
    assert "![path](path.png)" in text
    assert "- processor: A chip" in text


def test_records_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it is in the dependency group 'benchmark'")

    assert plot(RESULT, tmp_path / "path.png")

    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_a_suite_without_records(tmp_path: Path) -> None:
    assert not plot(LOSSES, tmp_path / "compression.png")
    assert not list(tmp_path.iterdir())
