"""``paramfleet launch --max-restarts``: a worker that dies is started again, and goes on."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = Path(__file__).parents[1] / "training" / "scripts" / "train_again.py"
BODY = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
OPTIONS = ("--server_num=2", "--worker_num=2")


def begun(launch: Callable[..., Any], tmp_path: Path, *words: str, more: Any = ()) -> Any:
    return launch(
        BODY, *OPTIONS, "--max-restarts=2", *more, words=(*words, "--marks", str(tmp_path))
    )


def results(launched: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """Wait for the end; return what the workers found."""
    assert launched.read_to_end() == 0, launched.text
    found = []
    for rank in (0, 1):
        lines = (tmp_path / "log" / f"workerlog.{rank}").read_text().splitlines()
        found.append(json.loads([line for line in lines if line.startswith("{")][-1]))
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    names = ("rows", "dense", "buffers", "lr", "steps")
    losses = dict(map(tuple, other["losses"]))
    is_same = all(losses[step] == loss for step, loss in one["losses"])
    return is_same and all(one[name] == other[name] for name in names)


def test_sync_ends_with_the_numbers_of_a_run_without_deaths(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    expected = results(begun(launch, tmp_path), tmp_path)

    dies = ["0:4:backward", "1:9:stepped", "0:15:forward"]
    launched = begun(launch, tmp_path, "--dies", *dies, more=("--data-dir=data",))
    launched.wait_all("pserver 1")
    launched.read_until("worker 0 was killed by SIGKILL; starting it again, 1 of 2")
    os.kill(launched.pids["pserver 1"], signal.SIGKILL)
    found = results(launched, tmp_path)

    assert "worker 1 was killed by SIGKILL; starting it again, 1 of 2" in launched.said
    assert "worker 0 was killed by SIGKILL; starting it again, 2 of 2" in launched.said
    assert "pserver 1 was killed by SIGKILL; starting it again, 1 of 2" in launched.said
    assert [same(one, want) for one, want in zip(found, expected, strict=True)] == [True, True]
    assert launched.survivors(0.0) == []


def test_sync_clips_by_the_same_norms_where_workers_and_pservers_die(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    expected = results(begun(launch, tmp_path, "--clip"), tmp_path)

    dies = ["0:4:backward", "1:9:clipped", "0:15:stepped", "1:21:clipped"]
    more = ("--data-dir=data", "--max-restarts=3")
    launched = begun(launch, tmp_path, "--clip", "--dies", *dies, more=more)
    launched.wait_all("pserver 1")
    launched.read_until("worker 1 was killed by SIGKILL; starting it again, 1 of 3")
    os.kill(launched.pids["pserver 1"], signal.SIGKILL)
    found = results(launched, tmp_path)

    assert "worker 1 was killed by SIGKILL; starting it again, 2 of 3" in launched.said
    assert "pserver 1 was killed by SIGKILL; starting it again, 1 of 3" in launched.said
    assert [same(one, want) for one, want in zip(found, expected, strict=True)] == [True, True]


@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_that_sync_writes_are_the_same_where_workers_die(
    launch: Callable[..., Any], tmp_path: Path, when: str
) -> None:
    words = ("--clamps", when)
    expected = results(begun(launch, tmp_path, *words), tmp_path)

    dies = ["0:4:backward", "1:9:backward", "0:15:forward"]
    if when == "before":  # what follows a step isn't repeated where its worker comes back
        dies[1] = "1:9:stepped"
    found = results(begun(launch, tmp_path, *words, "--dies", *dies), tmp_path)

    assert [same(one, want) for one, want in zip(found, expected, strict=True)] == [True, True]


def test_a_write_that_a_worker_left_out_when_it_came_back_ends_the_job_by_name(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path, "--clamps", "after", "--dies", "1:9:stepped")

    assert launched.read_to_end() != 0, launched.text
    assert "WriteNotSharedError: 1 of 2 workers wrote to the weight of table" in launched.text


def test_a_worker_that_dies_again_and_again_ends_the_job_by_name(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path, "--dies", "1:4:forward", "--always")

    assert launched.read_to_end() == 137, launched.text
    assert "worker 1 was killed by SIGKILL; starting it again, 2 of 2" in launched.said
    assert launched.said[-1] == "the job failed: worker 1 was killed by SIGKILL"
    assert f"the last lines of {tmp_path}/log/workerlog.1:" in launched.said
    assert launched.survivors(0.0) == []


def test_a_script_that_raises_is_tried_again_and_its_error_is_named(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path, "--raises", "5")

    assert launched.read_to_end() == 1, launched.text
    assert "worker 1 exited with code 1; starting it again, 2 of 2" in launched.said
    assert "RuntimeError: the script's own" in launched.said[-1]


def test_a_job_that_shrinks_goes_on_without_a_worker_that_dies_again_and_again(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("--dies", "1:4:forward", "--always", "--on_loss", "shrink")
    launched = launch(
        BODY, *OPTIONS, "--max-restarts=1", words=(*words, "--marks", str(tmp_path)),
        environment={"PARAMFLEET_COORDINATOR__WORKER_RETURN_S": "500"},  # nobody waits for it
    )  # fmt: skip

    assert launched.read_to_end() == 0, launched.text
    assert "worker 1 was killed by SIGKILL; the job goes on without it" in launched.said
    assert '"steps": 40' in launched.stdout


def test_a_rule_that_is_broken_ends_the_job_at_once(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = begun(launch, tmp_path, "--mode", "async", "--on_loss", "shrink")

    assert launched.read_to_end() == 1, launched.text
    assert "starting it again" not in launched.text
    assert "StrategyError" in launched.said[-1]
