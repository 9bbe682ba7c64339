"""What ``paramfleet verify`` says of its runs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paramfleet_worker.app.commands.verify import summary_of, too_slow, verify
from paramfleet_worker.app.verify.plan import plan_run
from paramfleet_worker.app.verify.running import Ran


def test_the_last_line_adds_up_all_runs(tmp_path: Path) -> None:
    one = Ran(plan_run(1, "sync"), tmp_path, acked=480, kills=[1.0, 2.0], recovery_s=[1.5, 0.5])
    other = Ran(plan_run(2, "geo"), tmp_path, acked=480, lost=1, doubled=2, problems=["bad"])

    assert summary_of([one, other], 1) == {
        "runs": 2,
        "failed": 1,
        "kills": 2,
        "migrations": 0,
        "acked": 960,
        "lost": 1,
        "doubled": 2,
        "recovery_p50_s": 0.5,
        "recovery_p99_s": 1.5,
        "seed": 1,
    }


def test_without_a_recovery_there_is_no_time(tmp_path: Path) -> None:
    assert summary_of([Ran(plan_run(1, "sync"), tmp_path)], 1)["recovery_p99_s"] is None


def test_a_recovery_that_takes_too_long_is_a_problem(tmp_path: Path) -> None:
    ran = Ran(plan_run(1, "localsgd"), tmp_path, recovery_s=[3.2, 120.5, 60.0])

    assert too_slow(ran, 60.0) == [
        "workers stood still for 120.5 s after a kill, and 60 s are allowed"
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"seed": 1, "kills": [3]})])
def test_a_file_that_holds_no_plan_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)

    ended = CliRunner().invoke(verify, ["--plan", str(path)])

    assert ended.exit_code == 2
    assert "holds no plan of `paramfleet verify`" in ended.output
