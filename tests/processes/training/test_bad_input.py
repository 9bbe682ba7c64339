"""Mistakes of a whole job: each ends in time, with an error that names the thing."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_bad.py"


def line_of(log: str, start: str) -> str:
    return next(line for line in log.splitlines() if line.startswith(start))


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
@pytest.mark.parametrize(("where", "table"), [("row", "deep"), ("dense", "dense_0")])
def test_a_nan_in_a_gradient_is_refused_and_training_goes_on(
    jobs: Any, mode: str, where: str, table: str
) -> None:
    ended = jobs.run(SCRIPT, "--mode", mode, "--nan", where)

    assert set(ended.codes.values()) == {0}, ended.story()
    told = line_of(ended.logs["worker1"], "refused: ")
    assert told.startswith(f"refused: table '{table}': 1 values of the gradient of step 4 are")
    assert "learning rate" in told, "the remedy"
    if mode != "async":  # there, others' pushes may arrive at any time
        assert "unchanged: True" in ended.logs["worker1"]
    held = [line_of(ended.logs[name], "held ") for name in ("worker0", "worker1")]
    assert held[0] == held[1] if mode == "sync" else "nan" not in "".join(held)


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_nan_for_a_learning_rate_is_refused_and_training_goes_on(
    jobs: Any, mode: str
) -> None:
    ended = jobs.run(SCRIPT, "--mode", mode, "--bad_rate")

    assert set(ended.codes.values()) == {0}, ended.story()
    told = line_of(ended.logs["worker1"], "refused: ")
    assert told.startswith("refused: table 'deep': the learning rate of step 4 is nan")
    if mode != "async":
        assert "unchanged: True" in ended.logs["worker1"]
    assert "nan" not in line_of(ended.logs["worker0"], "held ")


@pytest.mark.parametrize(
    ("option", "table"), [("--dim_of_1", "deep"), ("--out_of_1", "dense_0")]
)
@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_workers_with_different_models_are_told_which_table_differs(
    jobs: Any, option: str, table: str, mode: str
) -> None:
    ended = jobs.start(SCRIPT, "--mode", mode, option, "5").end()

    assert all(ended.codes.values()), ended.story()
    said = ended.logs["worker0"] + ended.logs["worker1"]
    assert f"TableMismatchError: table '{table}' is declared with" in said, ended.story()
    assert "every worker must declare the same model" in said


@pytest.mark.parametrize("options", [[], ["--finished"]])
def test_a_metric_of_one_worker_alone_is_refused_and_names_where_the_others_are(
    jobs: Any, options: list[str]
) -> None:
    ended = jobs.start("merge_in_one.py", *options).end()

    assert ended.codes["worker0"], ended.story()
    told = next(
        line for line in ended.logs["worker0"].splitlines() if "OtherCallError: " in line
    )
    assert "worker 0 waits in Auc.merged (merge_in_one.py:" in told
    assert "fleet.stop_worker" in told


def test_workers_with_different_strategies_are_told_so(jobs: Any) -> None:
    running = jobs.new()
    running.start_coordinator()
    for index in (0, 1):
        running.start_pserver(index, SCRIPT)
        running.start_worker(index, SCRIPT, "--mode", ["sync", "geo"][index])

    ended = running.end()

    assert all(ended.codes.values()), ended.story()
    assert "every worker must use the same strategy" in ended.story()


def test_a_pserver_port_in_use_is_named(jobs: Any) -> None:
    running = jobs.new(workers=1, servers=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", running.ports[0]))
        taken.listen()

        running.start_pserver(0, SCRIPT)

        assert running.code("pserver0") == 1
    said = running.log("pserver0")
    assert f"PortInUseError: port {running.ports[0]} of 127.0.0.1 is in use" in said
    assert "choose port 0" in said


@pytest.mark.parametrize("role", ["coordinator", "pserver0", "worker0"])
def test_without_redis_every_role_gives_up_in_time_and_says_what_to_do(
    jobs: Any, role: str
) -> None:
    running = jobs.new(PARAMFLEET_REDIS="redis://127.0.0.1:1/0", PARAMFLEET_JOIN_TIMEOUT_S="1")
    started = time.perf_counter()
    if role == "coordinator":
        running.start_coordinator()
    elif role == "pserver0":
        running.start_pserver(0, SCRIPT)
    else:
        running.start_worker(0, SCRIPT)

    assert running.code(role) != 0

    assert time.perf_counter() - started < 6 + LATE_S
    assert "no answer from Redis at redis://127.0.0.1:1/0 after 1." in running.log(role)
    assert "start redis-server" in running.log(role)


def test_without_a_coordinator_a_worker_says_how_to_start_one(jobs: Any) -> None:
    running = jobs.new(PARAMFLEET_JOIN_TIMEOUT_S="1")

    running.start_worker(0, SCRIPT)

    assert running.code("worker0") == 1
    assert f"no coordinator of job '{running.job}'" in running.log("worker0")
    assert "paramfleet coordinator" in running.log("worker0")


def test_a_worker_beyond_the_count_is_turned_away_and_the_job_goes_on(
    jobs: Any, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    args = ["--until", str(enough)]
    running = jobs.start("train_long.py", *args, servers=1)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    running.start_worker(None, "train_long.py", *args, name="onemore")

    assert running.code("onemore") == 1
    said = running.log("onemore")
    assert "JobFullError: the job was started for 2 workers (index 0 to 1)" in said
    enough.touch()
    running.end()
    assert {running.code(f"worker{rank}") for rank in (0, 1)} == {0}
    assert running.code("coordinator") == 0


def test_a_worker_whose_index_is_beyond_the_count_is_told_so_at_once(jobs: Any) -> None:
    running = jobs.new()

    running.start_worker(2, SCRIPT)

    assert running.code("worker2") == 1
    assert "PADDLE_TRAINER_ID" in running.log("worker2")
    assert "must be below PADDLE_TRAINERS_NUM = 2" in running.log("worker2")
