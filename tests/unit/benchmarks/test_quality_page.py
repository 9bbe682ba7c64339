"""That the documentation's tables are what the runs say."""

import json
from pathlib import Path

import pytest

import quality_page
from quality import Case, Run

FIRST, SECOND = Case("a", "sgd", 2, 1), Case("b", "adam", 6, 3)
RUNS = [
    Run(
        FIRST, 0, 0.7, {"async": 0.69, "geo": 0.7, "control": 0.7, "sync": 0.6, "delayed": 0.5}
    ),
    Run(
        FIRST, 1, 0.7, {"async": 0.67, "geo": 0.7, "control": 0.7, "sync": 0.6, "delayed": 0.5}
    ),
    Run(
        SECOND, 0, 0.8, {"async": 0.8, "geo": 0.9, "control": 0.8, "sync": 0.6, "delayed": 0.7}
    ),
]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_case_has_its_mean_its_worst_seed_and_how_far_it_is_from_its_floor() -> None:
    head, _, first, second = map(cells, quality_page.case_lines(RUNS))

    named = dict(zip(head, first, strict=True))
    assert named["async"] == "0.0200 (0.0300)"
    assert named["floor"] == "sync"
    assert named["async over floor"].startswith("-0.0800 [-0.2")
    assert dict(zip(head, second, strict=True))["GEO over floor"] == "-0.2000"


def test_totals_are_over_all_runs() -> None:
    head, _, *lines = map(cells, quality_page.total_lines(RUNS))

    totals = {name: dict(zip(head[1:], rest, strict=True)) for name, *rest in lines}
    assert head[0] == "over all 3 runs"
    assert totals["async"]["mean"] == "0.0133"
    assert totals["async"]["worst"] == "0.0300"
    assert totals["floor"]["mean"] == "0.1000"
    assert totals["floor"]["worst over floor"] == "0.0000"
    assert totals["delayed"]["mean over floor"] == "0.0667"


def test_the_tables_of_a_kept_result_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "quality.json"
    kept.write_text(json.dumps({"details": {"runs": [list(each) for each in RUNS]}}))
    monkeypatch.setattr("sys.argv", ["quality_page.py", str(kept)])

    assert quality_page.main() == 0

    found = capsys.readouterr().out.splitlines()
    assert found == [*quality_page.case_lines(RUNS), "", *quality_page.total_lines(RUNS)]
