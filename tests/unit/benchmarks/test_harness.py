"""What every suite reports with: headlines that hold, tables, the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from conditions import Headline
from harness import (
    Suite,
    machine_facts,
    markdown_table,
    run_script,
    suite_of,
    write_json,
)
from rounds import Ratio, Turns


def test_a_result_has_no_headline_that_does_not_hold() -> None:
    turns = Turns(["a"], budget_s=0.0)
    assert list(turns) == ["a"]

    result = suite_of(
        "suite",
        rows=[],
        headlines={"holds": Headline([2.0] * 5, 5), "fails": Headline([2.0], 1)},
        method="None.",
        turns={"all": turns},
        details={"size": 3},
    )

    assert result["summary"] == {"holds": 2.0, "fails": None}
    assert result["details"]["size"] == 3
    assert result["details"]["spread"] == {"holds": (2.0, 2.0, 2.0), "fails": (2.0, 2.0, 2.0)}
    assert result["details"]["refused"] == {
        "fails": "rounds that count: 1, at least 5 are needed"
    }
    assert result["details"]["rounds"]["all"]["run"] == 1


def test_records_with_other_keys_begin_another_table() -> None:
    rows: list[dict[str, Any]] = [
        {"case": "pull", "GB/s": 3.14159, "ratio": (0.5, 0.25, 1.0)},
        {"case": "push", "GB/s": None, "ratio": (12345.0, 2, 3)},
        {"rows": 1_000_000},
    ]

    assert markdown_table(rows) == [
        "| case | GB/s | ratio |",
        "|---|---|---|",
        "| pull | 3.142 | 0.5 (0.25..1) |",
        "| push |  | 12,345 (2..3) |",
        "",
        "| rows |",
        "|---|",
        "| 1000000 |",
    ]


def test_the_machine_is_told() -> None:
    facts = machine_facts()

    assert facts["processor"]
    assert facts["cores"] >= 1
    assert "numpy" in facts["versions"]


def test_json_is_written_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "results" / "suite.json"

    write_json(path, {"a": [1, 2]})

    assert json.loads(path.read_text()) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("arguments", "budget_s"), [([], 60.0), (["--quick"], 8.0), (["--budget=3"], 3.0)]
)
def test_a_script_prints_its_tables_and_ends_with_a_json_line(
    arguments: list[str],
    budget_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "suite.json"
    monkeypatch.setattr("sys.argv", ["suite.py", f"--output={output}", *arguments])

    def measure(*, budget_s: float) -> Suite:
        return {
            "benchmark": "suite",
            "rows": [{"budget": budget_s, "figures": [1 / 3, Ratio(2 / 3, 1, 0.1)]}],
            "summary": {"speed": None},
            "method": "None.",
        }

    assert run_script(measure, description="A suite.", budget_s=60.0) == 0

    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert lines[0] == "| budget | figures |"
    assert result["rows"] == [{"budget": budget_s, "figures": [0.33333, [0.66667, 1, 0.1]]}]
    assert result["load_average_before"]
    assert result["machine"]["cores"] >= 1
    assert result == json.loads(output.read_text())
