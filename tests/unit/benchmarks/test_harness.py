"""What every suite reports with: rounds in turns, ratios of one round, tables."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness import (
    Ratio,
    Rounds,
    Suite,
    in_turns,
    machine_facts,
    markdown_table,
    run_script,
    write_json,
)


def ticking(step_s: float) -> Iterator[float]:
    return count(0.0, step_s)


def test_each_round_runs_every_case_once_and_begins_with_another() -> None:
    turns = list(in_turns(["a", "b", "c"], budget_s=60.0, max_rounds=4))

    assert turns == [*"abc", *"bca", *"cab", *"abc"]


def test_the_first_round_runs_even_without_time() -> None:
    assert list(in_turns(["a", "b"], budget_s=0.0)) == ["a", "b"]


def test_no_round_begins_that_would_end_too_late() -> None:
    seconds = ticking(1.0)  # the clock is read before and after each round

    turns = list(in_turns(["a"], budget_s=6.5, now=lambda: next(seconds)))

    assert turns == ["a"] * 3  # begun at 1, 3 and 5; the next would end at 8


def test_a_ratio_is_of_figures_of_the_same_round() -> None:
    rounds = Rounds(["ours", "theirs"])
    rounds.figures = {"ours": [10.0, 1.0, 4.0], "theirs": [5.0, 1.0, 1.0]}

    assert rounds.ratio("ours", "theirs") == Ratio(2.0, 1.0, 4.0)
    assert rounds.figure("ours") == Ratio(4.0, 1.0, 10.0)
    assert str(rounds.ratio("ours", "theirs")) == "2.00 (1.00..4.00)"


def test_rounds_keep_what_the_cases_return() -> None:
    numbers = count(1.0)
    rounds = Rounds(["a", "b"])

    rounds.run(
        {"a": lambda: next(numbers), "b": lambda: next(numbers)}, budget_s=60.0, max_rounds=2
    )

    assert rounds.figures == {"a": [1.0, 4.0], "b": [2.0, 3.0]}


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
