"""How all suites share the time, and what becomes of one that fails."""

import json
from pathlib import Path

import pytest

import run

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


def test_late_suites_get_less_when_early_ones_took_longer() -> None:
    plan = run.Plan(["transport", "table", "path"], total_s=300.0)

    first = plan.take("transport", elapsed_s=0.0)
    second = plan.take("table", elapsed_s=200.0)
    third = plan.take("path", elapsed_s=290.0)

    assert first == run.SUITES["transport"]
    both = run.SUITES["table"] + run.SUITES["path"]
    assert second == pytest.approx(100.0 * run.SUITES["table"] / both)
    assert third == pytest.approx(10.0)


def test_all_suites_fit_into_ten_minutes() -> None:
    assert sum(run.SUITES.values()) < run.TOTAL_S < 600


def test_a_long_suite_runs_last_and_in_its_own_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LONG", {"long": 700.0})
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
    assert last["path_vs_grpcio"] == 3.5
    assert last["geo_train_vs_single"] is None
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
