"""Rows that scripts write past the optimizer, in whole jobs of real processes."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "write_rows.py"


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


def trained_by_torch(jobs: Any, optimizer: str) -> dict[str, Any]:
    found: dict[str, Any] = jobs.local_once(SCRIPT, "--mode", "torch", "--optimizer", optimizer)
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_alone_rows_are_what_torch_makes_of_the_same_writes(jobs: Any, optimizer: str) -> None:
    alone = jobs.local_once(SCRIPT, "--mode", "alone", "--optimizer", optimizer)

    expected = trained_by_torch(jobs, optimizer)

    assert alone["began"] == expected["began"]
    assert far(alone, expected, "rows") <= 1e-6
    assert far(alone, expected, "dense") <= 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize(
    ("mode", "workers", "more"),
    [
        ("sync", 1, []),
        ("sync", 2, ["--prefetch"]),
        ("sync", 3, ["--wrong"]),
        ("async", 1, []),
        ("geo", 1, []),
        ("gpubox", 1, []),
    ],
)
def test_jobs_compute_what_torch_does_where_rows_begin_with_values_and_are_clamped(
    jobs: Any, optimizer: str, mode: str, workers: int, more: list[str]
) -> None:
    expected = trained_by_torch(jobs, optimizer)

    args = ["--mode", mode, "--optimizer", optimizer, *more]
    results = jobs.run(SCRIPT, *args, workers=workers, servers=2).results

    for result in results:
        assert result["began"] == expected["began"], "worker 0's first rows, everywhere"
        assert far(result, expected, "rows") <= 1e-5
        assert far(result, expected, "dense") <= 1e-5
    if "--wrong" in more:
        problem = results[0]["problem"]
        assert "1 of 3 workers wrote to the weight of table 'rows' before step 6" in problem
        assert "nothing was written" in problem


def test_all_workers_of_sync_learn_that_rows_had_no_room_and_go_on(
    jobs: Any, tmp_path: Path
) -> None:
    expected = trained_by_torch(jobs, "adagrad")

    args = ("--full", str(tmp_path / "full"))
    first, second = jobs.run(SCRIPT, *args, workers=2, servers=2).results

    assert first["problem"].startswith("TableMemoryError: ")
    assert second["problem"].startswith(
        "RowsNotWrittenError: worker 0 failed or died while it wrote rows of table 'rows'"
    )
    for result in (first, second):
        assert far(result, expected, "rows") <= 1e-5


@pytest.mark.parametrize("mode", ["sync", "gpubox"])
def test_writes_are_in_once_also_where_a_pserver_was_killed_meanwhile(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    args = ("--mode", mode, "--steps", "200", "--every", "2")
    workers = 2 if mode == "sync" else 1
    expected = jobs.run(SCRIPT, *args, workers=workers, servers=2).results
    durable = {"DURABILITY": "async", "DATA_DIR": str(tmp_path / "data")}
    env = {f"PARAMFLEET_PSERVER__{name}": value for name, value in durable.items()}

    running = jobs.start(SCRIPT, *args, workers=workers, servers=2, **env)
    for number in range(3):
        running.wait_for("worker0", f"step {40 * (number + 1)}.")
        former, index = f"pserver{number % 2}" + ("" if number < 2 else ".1"), number % 2
        running.send(former, signal.SIGKILL)
        running.code(former)
        name = f"pserver{index}.{1 + number // 2}"
        running.start_pserver(index, SCRIPT, *args, name=name)
    ended = running.end()

    assert [ended.last_json(f"worker{rank}") for rank in range(workers)] == expected


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_worker_that_comes_late_takes_the_rows_as_they_are_by_then(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    args = ("--mode", mode, "--until", str(tmp_path / "enough"))
    elastic = {"PARAMFLEET_COORDINATOR__ELASTIC": "true"}
    running = jobs.start(SCRIPT, *args, workers=2, servers=2, **elastic)
    running.wait_for("worker0", "step 12.")
    running.wait_for("worker1", "step 12.")

    running.start_worker(None, SCRIPT, *args, name="worker_late")
    running.wait_for("worker_late", "step 12.")
    (tmp_path / "enough").touch()
    ended = running.end()

    assert set(ended.codes.values()) == {0}, ended.story()
    first, second, late = (
        ended.last_json(name) for name in ("worker0", "worker1", "worker_late")
    )
    assert far(late, first, "began") > 1e-2, "others had trained the rows"
    assert far(first, second, "rows") <= 1e-5
    assert far(first, late, "rows") <= 1e-5


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_values_that_all_workers_write_are_the_values(jobs: Any, mode: str) -> None:
    first, second = jobs.run(SCRIPT, "--mode", mode, "--what", "all").results

    assert first["written"] == second["written"] == first["rows"] == second["rows"]


@pytest.mark.parametrize("mode", ["async", "geo", "gpubox"])
def test_values_that_one_worker_writes_reach_the_other_whole(jobs: Any, mode: str) -> None:
    args = ["--mode", mode, "--what", "one", "--steps", "0"]

    first, second = jobs.run(SCRIPT, *args).results

    assert first["written"] == first["rows"] == second["rows"]


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_workers_agree_on_what_is_written_to_rows_of_16_bits(jobs: Any, mode: str) -> None:
    args = ["--mode", mode, "--what", "all", "--storage", "bfloat16"]

    first, second = jobs.run(SCRIPT, *args).results

    assert first["rows"] == second["rows"]
    assert np.abs(np.subtract(first["written"], first["rows"])).max() <= 2e-3
