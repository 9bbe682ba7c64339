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
    "summary": {
        "path_vs_redis": 25.5,
        "path_vs_grpcio": 1.25,
        "path_vs_grpcio_cpu": 2.5,
        "path_vs_torch_rpc": None,
        "path_vs_limits": 0.7,
        "path_bf16_vs_float32": None,
    },
    "method": "Steps.",
    "details": {
        "missing": {"redis_c": "no hiredis"},
        "counted": {"path_vs_redis": 9, "path_vs_torch_rpc": 8},
        "spread": {
            "path_vs_redis": [25.5, 20.0, 30.0],
            "path_vs_torch_rpc": [2.0, 1.0, 4.0],
            "path_bf16_vs_float32": [0.8, 0.5, 1.5],
        },
        "refused": {
            "path_vs_torch_rpc": "its spread over 9 rounds is 0.71",
            "path_bf16_vs_float32": "its spread over 9 rounds is 0.50",
        },
        "rounds": {
            "path": {"run": 12, "counted": 9, "dropped": {"the hypervisor": 2, "slow": 1}},
            "other": {"run": 2, "counted": 0, "dropped": {"slow": 2}},
            "good": {"run": 7, "counted": 7, "dropped": {}},
        },
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

FAILED: dict[str, Any] = {
    **LOSSES,
    "summary": {},
    "failed": "it ended with 1; its last words:\nTraceback\nKeyError: 3\n",
}


def test_the_summary_has_every_headline_and_nothing_else() -> None:
    summary = summary_of({"path": RESULT, "compression": FAILED}, {"start": "make it"})

    assert list(summary) == list(GOALS)
    assert summary["path_vs_redis"] == {"value": 25.5, "low": 20.0, "high": 30.0, "rounds": 9}
    assert summary["path_vs_grpcio_cpu"]["rounds"] == 1
    assert summary["path_vs_torch_rpc"] == {
        "value": None,
        "low": 1.0,
        "high": 4.0,
        "rounds": 8,
        "refused": "its spread over 9 rounds is 0.71",
    }
    assert summary["start_vs_bare"]["left_out"] == "`make it` measures it"


def test_a_figure_of_seeds_has_their_number() -> None:
    result = {**FAILED, "summary": {"wire_bf16_auc_loss": 0.0004}, "details": {"seeds": 3}}

    summary = summary_of({"compression": result}, {})

    assert summary["wire_bf16_auc_loss"] == {
        "value": 0.0004,
        "low": 0.0004,
        "high": 0.0004,
        "rounds": 3,
    }


def test_every_headline_without_a_value_has_a_reason() -> None:
    summary = summary_of({"path": RESULT, "compression": FAILED}, {})

    reasons = {name: each.get("refused") for name, each in summary.items()}
    assert all((each["value"] is None) == ("refused" in each) for each in summary.values())
    assert reasons["geo_train_vs_single"] == "it was never measured"
    assert reasons["path_vs_grpcio_tcp"] == "without redis_c: no hiredis"
    assert reasons["wire_bf16_auc_loss"] == (
        "its suite failed: it ended with 1; its last words: KeyError: 3"
    )


def test_the_page_says_what_was_measured_and_what_was_to_be_reached() -> None:
    text = page({"path": RESULT, "compression": LOSSES}, ["path"])

    assert "| `path_vs_redis` | 25.5 (20..30) | at least 25 | yes |" in text
    assert "| `path_vs_grpcio` | 1.25 | at least 3 | no |" in text
    assert "| `geo_train_vs_single` |  | at least 1.7 | not measured |" in text
    assert "| `wire_bf16_auc_loss` | 0.0004 | at most 0.001 | yes |" in text
    assert "| `wire_int8_auc_loss` | 0.01 | at most 0.002 | no |" in text
    assert "| ours | 1 | 300 (250..310.5) | 1.5 |" in text
    assert "| `path_vs_grpcio_cpu` | 2.5 |  |  |" in text
    assert "| `path_vs_limits` | 0.7 |  |" in text
    assert "Without `redis_c`: no hiredis." in text
    assert "Load average 0.5 before, 1.5 after; 75 s." in text
    assert "it ended with 1" in text
    assert "![path](path.png)" in text
    assert "- processor: A chip" in text


def test_the_page_names_what_is_refused_and_why() -> None:
    text = page({"path": RESULT}, [])

    assert "| `path_vs_torch_rpc` | 2 (1..4) | at least 2 | refused |" in text
    assert "- `path_vs_torch_rpc` is refused: its spread over 9 rounds is 0.71." in text
    assert "| `path_bf16_vs_float32` | 0.8 (0.5..1.5) | yes |" in text
    assert "- `path_bf16_vs_float32` is refused: its spread over 9 rounds is 0.50." in text
    assert summary_of({"path": RESULT}, {})["path_vs_torch_rpc"]["value"] is None


def test_the_page_says_which_rounds_count() -> None:
    text = page({"path": RESULT}, [])

    assert "Rounds of path: 9 of 12 count. Left out: the hypervisor (2); slow (1)." in text
    assert "Rounds of other: 0 of 2 count. Left out: slow (2). The tables show all" in text
    assert "Rounds of good: 7 of 7 count." in text


def test_records_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it is in the dependency group 'benchmark'")

    assert plot(RESULT, tmp_path / "path.png")

    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_a_suite_without_records(tmp_path: Path) -> None:
    assert not plot(LOSSES, tmp_path / "compression.png")
    assert not list(tmp_path.iterdir())
