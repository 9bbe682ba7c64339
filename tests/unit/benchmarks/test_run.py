"""How all suites share the time, and what becomes of one that fails."""

import json
from pathlib import Path

import pytest

import run
from harness import write_json

SUITE = """
import sys
sys.path.insert(0, {benchmarks!r})
from harness import run_script

def measure(*, budget_s):
    {act}
    return {{
        "benchmark": "suite",
        "rows": [{{"budget": budget_s}}],
        "summary": {{"path_vs_grpcio": 3.5}},
        "method": "None.",
    }}

sys.exit(run_script(measure, description="A suite.", budget_s=60.0))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of suites, of which the runner knows ``good`` and ``bad``."""
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "SUITES", {"good": 30.0, "bad": 10.0})
    return tmp_path


def write_suite(folder: Path, name: str, act: str) -> None:
    benchmarks = str(Path(run.__file__).parent)
    (folder / f"{name}.py").write_text(SUITE.format(benchmarks=benchmarks, act=act))


def test_a_suite_gets_all_the_time_it_needs_or_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "SUITES", {"a": 100.0, "b": 80.0, "c": 300.0, "d": 50.0})
    plan = run.Plan(total_s=300.0)

    assert plan.fits("a", elapsed_s=0.0)
    assert plan.fits("b", elapsed_s=120.0)  # 96 s at the pace of the first
    assert not plan.fits("c", elapsed_s=216.0)
    assert plan.fits("d", elapsed_s=216.0)
    assert not plan.fits("d", elapsed_s=276.0)


def test_all_but_the_long_suites_fit_into_ten_minutes() -> None:
    plan, elapsed_s, left_out = run.Plan(run.TOTAL_S), 0.0, []
    for name, seconds in run.SUITES.items():
        if plan.fits(name, elapsed_s=elapsed_s):
            elapsed_s += 1.03 * seconds
        else:
            left_out.append(name)

    assert elapsed_s < run.TOTAL_S < 600
    assert left_out == ["durability", "recovery"]


def test_what_does_not_fit_is_left_out_by_name_with_the_command_that_measures_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "SUITES", {"path": 30.0, "recovery": 700.0})
    write_suite(folder, "path", "pass")
    results = folder / "results"
    results.mkdir()
    known = {"summary": {"launch_to_first_step_s": 2.5}, "rows": [], "method": ""}
    write_json(results / "start.json", {"benchmark": "start", "failed": "", **known})
    monkeypatch.setattr("sys.argv", ["run.py", f"--results={results}"])

    assert run.main() == 0

    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert lines[-1] == (
        "left out, because it needs 700 s: recovery; `make bench ONLY=recovery`"
    )
    assert summary["recovery_p99_s"] == {
        "value": None,
        "low": None,
        "high": None,
        "rounds": 0,
        "refused": "it was never measured",
        "left_out": "`make bench ONLY=recovery` measures it",
    }
    command = "python benchmarks/start.py --output benchmarks/results/start.json"
    assert summary["start_vs_bare"]["left_out"] == f"`{command}` measures it"
    assert "left_out" not in summary["path_vs_grpcio"]


def test_a_suite_that_is_named_runs_however_long_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SUITES", {"good": 30.0, "long": 700.0})
    write_suite(folder, "good", "pass")
    write_suite(folder, "long", "pass")
    results = folder / "results"
    monkeypatch.setattr("sys.argv", ["run.py", f"--results={results}", "--only=long,good"])

    assert run.main() == 0

    assert json.loads((results / "good.json").read_text())["rows"] == [{"budget": 30.0}]
    assert json.loads((results / "long.json").read_text())["rows"] == [{"budget": 700.0}]


def test_a_failed_suite_says_why_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_suite(folder, "good", "pass")
    write_suite(folder, "bad", "raise ValueError('no peer')")
    results = folder / "results"
    monkeypatch.setattr("sys.argv", ["run.py", f"--results={results}"])

    assert run.main() == 1

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == json.loads((results / "summary.json").read_text())
    assert [set(each) for each in last.values()] == [
        {"value", "low", "high", "rounds", "refused", "left_out"}
    ] * len(last)
    assert "no peer" in json.loads((results / "bad.json").read_text())["failed"]
    assert json.loads((results / "good.json").read_text())["rows"] == [{"budget": 30.0}]
    assert "## good" in (results / "README.md").read_text()


def test_one_suite_alone_leaves_the_results_of_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_suite(folder, "good", "pass")
    results = folder / "results"
    results.mkdir()
    (results / "bad.json").write_text(json.dumps(run.failure("bad", "yesterday")))
    monkeypatch.setattr(
        "sys.argv", ["run.py", f"--results={results}", "--only=good", "--quick"]
    )

    assert run.main() == 0

    assert json.loads((results / "good.json").read_text())["rows"] == [{"budget": 8.0}]
    assert "yesterday" in (results / "README.md").read_text()


def test_a_suite_that_does_not_end_is_stopped(folder: Path) -> None:
    write_suite(folder, "good", "import threading; threading.Event().wait()")

    result = run.run_suite("good", [], limit_s=1.0)

    assert "stopped after 1 s" in result["failed"]


def test_a_suite_that_is_not_there_is_a_failure_too(folder: Path) -> None:
    assert "there is no bad.py" in run.run_suite("bad", [], limit_s=1.0)["failed"]


def test_an_unknown_suite_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "--only=speed"])

    with pytest.raises(SystemExit):
        run.parse_arguments()

    assert "no suite speed" in capsys.readouterr().err
