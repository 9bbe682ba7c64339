"""Workers and roles that don't come, or go, together."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_long.py"
UNEVEN = "train_uneven.py"


def far(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float(np.abs(np.subtract(a[key], b[key])).max()) for key in ("rows", "dense"))


@pytest.mark.parametrize(
    ("call", "counts", "workers"),
    [
        ("all_reduce", "3,5;0,2;4,1", 2),
        ("exchange", "3,5;0,2;4,1", 2),
        ("barrier", "3,5;0,2;4,1", 2),
        ("average_buffers", "2,0,4;1,3,0", 3),
    ],
)
def test_who_has_no_batch_left_takes_the_others_steps_while_it_waits_for_them_in_sync(
    jobs: Any, call: str, counts: str, workers: int
) -> None:
    args = ("--counts", counts)
    alone = jobs.local_once(UNEVEN, *args)

    results = jobs.run(UNEVEN, *args, "--call", call, workers=workers, servers=2).results

    for result in results:
        assert result["steps"] == alone["steps"]
        assert far(result, alone) <= 1e-5


@pytest.mark.parametrize("call", ["all_reduce", "barrier"])
def test_who_learns_late_that_a_call_has_ended_misses_no_step_with_its_batch(
    jobs: Any, call: str
) -> None:
    args = ("--counts", "2,2;2,2;2,2")
    alone = jobs.local_once(UNEVEN, *args)

    results = jobs.run(UNEVEN, *args, "--call", call, "--late").results

    for result in results:
        assert result["steps"] == alone["steps"]
        assert far(result, alone) <= 1e-5


@pytest.mark.parametrize("more", [(), ("--norms",)], ids=["plain", "norms"])
def test_losses_that_are_sums_over_the_batch_add_up_where_the_strategy_says_so(
    jobs: Any, more: tuple[str, ...]
) -> None:
    args = ("--counts", "3,4;2,2", "--sum", "--optimizer", "sgd", *more)
    alone = jobs.local_once(UNEVEN, *args, "--undeclared")

    ended = jobs.run(UNEVEN, *args)

    for result in ended.results:
        assert far(result, alone) <= 1e-5
    assert "worker.loss_reduction" not in ended.logs["worker0"]


@pytest.mark.parametrize(
    ("by", "more"),
    [
        ("torch", ()),
        ("imported", ("--sum", "--undeclared")),
        ("fleet", ("--norm_type", "inf")),
        ("fleet", ("--norm_type", "1.5", "--optimizer", "sgd")),
    ],
)
def test_gradients_are_clipped_by_the_norm_of_all_workers_gradients(
    jobs: Any, by: str, more: tuple[str, ...]
) -> None:
    args = ("--counts", "3,4;0,2", "--clip", "0.05", "--by", by, *more)
    alone = jobs.local_once(UNEVEN, *args)
    assert sum(norm > 0.05 for norm in alone["norms"]) >= 3, "something is clipped"
    if "--sum" in more:
        args = tuple(each for each in args if each != "--undeclared")

    first, second = jobs.run(UNEVEN, *args).results

    for result in (first, second):
        assert far(result, alone) <= 1e-5
    assert second["norms"] == pytest.approx(alone["norms"], rel=1e-5)
    assert first["norms"] == second["norms"][:3], "to the bit"


def test_who_takes_a_step_without_clipping_is_named_at_once(jobs: Any) -> None:
    args = ("--counts", "3,3", "--clip", "0.05", "--wrong", "unclipped")

    ended = jobs.start(UNEVEN, *args, PARAMFLEET_LEASE_TTL_S="6").end(within_s=60)

    assert ended.codes["worker1"] == 1
    says = "clip_grad_norm_ of step 1: worker 0 has taken the step without call 1"
    assert says in ended.logs["worker1"], ended.story()


def test_losses_that_are_sums_are_warned_of_where_the_strategy_says_mean(jobs: Any) -> None:
    ended = jobs.run(UNEVEN, "--counts", "2,2", "--sum", "--undeclared")

    assert set(ended.codes.values()) == {0}, ended.story()
    assert ended.logs["worker0"].count("worker.loss_reduction loss=sum") == 1
    assert "strategy.loss_reduction = 'sum'" in ended.logs["worker0"]


def test_who_waits_in_a_step_is_told_for_whom_and_where_that_one_is(jobs: Any) -> None:
    args = ("--counts", "3,3", "--wrong", "hangs")

    ended = jobs.start(
        UNEVEN, *args, PARAMFLEET_LEASE_TTL_S="6", PARAMFLEET_BARRIER_TIMEOUT_S="4"
    ).end(within_s=90)

    log = ended.logs["worker1"]
    assert "worker.waits_for_others at='step 2' missing='worker 0 (in step 2)'" in log, log
    assert "step 1 waits for worker(s) 0 (in step 2)" in log


def test_a_forward_without_a_gradient_is_no_step_that_is_interrupted(jobs: Any) -> None:
    args = ("--counts", "3,5;0,2", "--wrong", "evaluates")
    alone = jobs.local_once(UNEVEN, *args)

    for result in jobs.run(UNEVEN, *args, "--clip", "100").results:
        assert far(result, alone) <= 1e-5


def test_sums_over_the_workers_of_a_step_wait_for_nobody_without_a_batch(jobs: Any) -> None:
    args = ("--counts", "3,5;0,2", "--norms")
    alone = jobs.local_once(UNEVEN, *args)

    for result in jobs.run(UNEVEN, *args).results:
        assert result["steps"] == alone["steps"]
        assert far(result, alone) <= 1e-5


@pytest.mark.parametrize("where", ["between", "forward"])
def test_who_waits_for_the_others_in_the_middle_of_a_step_is_told_at_once(
    jobs: Any, where: str
) -> None:
    args = ("--counts", "3,3", "--wrong", where)

    ended = jobs.start(UNEVEN, *args, PARAMFLEET_LEASE_TTL_S="6").end(within_s=60)

    assert ended.codes["worker0"] == ended.codes["worker1"] == 1
    says = "worker 0 waits for the other workers in fleet.util.all_reduce (train_uneven.py:"
    assert says in ended.logs["worker0"]
    assert "they wait for it in step 2" in ended.logs["worker0"]
    assert "the job failed: worker 0: " in ended.logs["worker1"]


def test_who_makes_a_call_of_all_workers_once_more_than_they_is_told_where_they_are(
    jobs: Any,
) -> None:
    args = ("--counts", "3,3", "--wrong", "alone", "--call", "barrier")

    ended = jobs.start(UNEVEN, *args, PARAMFLEET_LEASE_TTL_S="6").end(within_s=60)

    assert ended.codes["worker0"] == 1
    assert "worker 1 waits in fleet.finish_training" in ended.logs["worker0"], ended.story()


@pytest.mark.parametrize(
    "mode", [("sync",), ("async",), ("async", "--max_staleness", "1"), ("geo",)], ids="-".join
)
def test_who_stops_early_waits_while_the_other_trains_on(
    jobs: Any, mode: tuple[str, ...], tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start(SCRIPT, "--mode", *mode, "--steps_of_0", "20", "--until", str(enough))
    running.wait_for("worker0", "stopping after 20")
    running.wait_for("worker1", "trained 60")
    assert "left with" not in running.log("worker0"), "it waits for the other"

    enough.touch()
    ended = running.end()

    assert set(ended.codes.values()) == {0}, ended.story()
    lines = {name: ended.logs[name].splitlines()[-1] for name in ("worker0", "worker1")}
    assert lines["worker0"].startswith("left with ")
    first, second = (json.loads(line.removeprefix("left with ")) for line in lines.values())
    assert first == pytest.approx(second, abs=1e-5)


def test_who_dies_while_another_waits_for_it_at_the_end_is_named_in_every_mode(
    jobs: Any,
) -> None:
    args = ("--steps_of_0", "20")
    running = {
        mode: jobs.start(SCRIPT, "--mode", mode, *args, PARAMFLEET_LEASE_TTL_S="6")
        for mode in ("sync", "async", "geo")
    }
    for each in running.values():
        each.wait_for("worker0", "stopping after 20")
        each.wait_for("worker1", "training as")

    for each in running.values():
        each.send("worker1", signal.SIGKILL)

    for mode, each in running.items():
        assert each.code("worker0") == 1, mode
        assert "the job failed: worker 1: " in each.log("worker0"), mode


def test_a_coordinator_may_come_seconds_late(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    enough.touch()
    running = jobs.new()
    for index in (0, 1):
        running.start_pserver(index, SCRIPT, "--until", str(enough))
        running.start_worker(index, SCRIPT, "--until", str(enough))

    time.sleep(3)  # noqa: TID251 - the lateness under test
    running.start_coordinator()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()


def test_pservers_may_come_after_the_workers(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    enough.touch()
    running = jobs.new()
    running.start_coordinator()
    for index in (0, 1):
        running.start_worker(index, SCRIPT, "--until", str(enough))
    running.wait_for("coordinator", "worker")
    running.start_pserver(1, SCRIPT, "--until", str(enough))
    running.wait_for("pserver1", "job.joined")
    running.start_pserver(0, SCRIPT, "--until", str(enough))

    ended = running.end()

    assert set(ended.codes.values()) == {0}, ended.story()
