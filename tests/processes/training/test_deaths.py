"""Without a launcher: how members learn that another one is gone, and what they say."""

import re
import signal
import time
from typing import Any

import pytest

from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_long.py"
MODES = ("sync", "async", "geo")
LEASE_TTL_S = 6.0
WITHIN_S = LEASE_TTL_S + LATE_S
QUICK_LEASE = {"PARAMFLEET_LEASE_TTL_S": str(LEASE_TTL_S)}


def start(jobs: Any, *args: str) -> Any:
    running = jobs.start(SCRIPT, *args, **QUICK_LEASE)
    wait_training(running)
    return running


def start_each_mode(jobs: Any) -> list[Any]:
    """Return a training job of each mode: the lease that all wait for passes once."""
    running = [jobs.start(SCRIPT, "--mode", mode, **QUICK_LEASE) for mode in MODES]
    for each in running:
        wait_training(each)
    return running


def wait_training(running: Any) -> None:
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")


def assert_all_end_naming(running: Any, member: str, reason: str) -> None:
    """Assert that everyone but the dead one ends in time, non-zero, with its name."""
    dead = member.replace(" ", "")
    ended = running.end(within_s=WITHIN_S)
    for name, log in ended.logs.items():
        assert ended.codes[name] != 0, f"{name} ended well:\n{log}"
        if name == dead:
            continue
        assert f"the job failed: {member}: {reason}" in log, f"{name} said:\n{log}"
        assert "Traceback (" not in log, f"{name} said:\n{log}"
        if name != "coordinator":
            last = log.rstrip().splitlines()[-1]
            said = re.search(r"\.job_failed reason=.the job failed: ", last)
            assert said is not None, f"{name} said:\n{log}"


@pytest.mark.parametrize("member", ["worker 1", "worker 0", "pserver 1"])
def test_everyone_ends_with_the_name_of_a_member_that_was_killed_in_every_mode(
    jobs: Any, member: str
) -> None:
    running = start_each_mode(jobs)

    for each in running:
        each.send(member.replace(" ", ""), signal.SIGKILL)

    for each in running:
        assert_all_end_naming(each, member, "")


def test_a_geo_worker_between_two_far_exchanges_learns_of_it_too(jobs: Any) -> None:
    running = start(jobs, "--mode", "geo", "--k_steps", "1000000")

    running.send("pserver0", signal.SIGKILL)

    assert_all_end_naming(running, "pserver 0", "")


@pytest.mark.parametrize("member", ["worker 1", "pserver 1"])
def test_a_member_that_hangs_is_dead_when_its_lease_is_over_in_every_mode(
    jobs: Any, member: str
) -> None:
    jobs_of_modes = start_each_mode(jobs)
    hung = member.replace(" ", "")

    for running in jobs_of_modes:
        running.send(hung, signal.SIGSTOP)
    for running in jobs_of_modes:
        for name in running.pids.keys() - {hung}:
            assert running.code(name, within_s=WITHIN_S) != 0
            assert f"the job failed: {member}: " in running.log(name)
        running.send(hung, signal.SIGCONT)

    for running in jobs_of_modes:
        assert running.code(hung, within_s=WITHIN_S) != 0, "back again, it learns of its end"
        assert f"the job failed: {member}: " in running.log(hung)


@pytest.mark.parametrize("fresh_steps", ["0", "1000000"])
@pytest.mark.parametrize(("mode", "operations"), [("async", "push|pull"), ("geo", "exchange")])
def test_a_request_past_its_deadline_names_peer_operation_and_time(
    jobs: Any, mode: str, operations: str, fresh_steps: str
) -> None:
    patience = {"PARAMFLEET_CALL_TIMEOUT_S": "3", "PARAMFLEET_LEASE_TTL_S": "60"}
    running = jobs.start(SCRIPT, "--mode", mode, "--fresh_steps", fresh_steps, **patience)
    wait_training(running)

    running.send("pserver0", signal.SIGSTOP)
    codes = [running.code(f"worker{rank}") for rank in (0, 1)]
    running.send("pserver0", signal.SIGKILL)

    assert codes == [1, 1]
    said = running.log("worker0") + running.log("worker1")
    late = rf"pserver 0 did not answer '({operations})' within ([0-9.]+) s"
    found = re.search(f"DeadlineExceededError: {late}", said)
    assert found, said
    # What was left of them when it was sent: a call's own beginning counts, too.
    assert 2.9 <= float(found[2]) < 3.0 + LATE_S


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_script_that_raises_ends_the_job_with_its_exception(jobs: Any, mode: str) -> None:
    running = jobs.start(SCRIPT, "--mode", mode, "--raise_at", "6")

    assert_all_end_naming(running, "worker 1", "ZeroDivisionError: the script's own mistake")
    assert running.log("worker1").count("Traceback") == 1, running.log("worker1")


def test_a_script_that_ends_without_stop_worker_ends_the_job(jobs: Any) -> None:
    running = jobs.start(SCRIPT, "--return_at", "6")

    running.wait_for("worker1", "training as")
    assert running.code("worker1") == 0
    for name in ("coordinator", "pserver0", "pserver1", "worker0"):
        assert running.code(name) != 0
        said = "the job failed: worker 1: its script ended without fleet.stop_worker()"
        assert said in running.log(name)


@pytest.mark.parametrize("member", ["worker 1", "pserver 1"])
def test_a_member_that_never_comes_is_waited_for_only_so_long(jobs: Any, member: str) -> None:
    running = jobs.new(PARAMFLEET_JOIN_TIMEOUT_S="3", PARAMFLEET_BARRIER_TIMEOUT_S="3")
    running.start_coordinator()
    for index in (0, 1):
        if member != f"pserver {index}":
            running.start_pserver(index, SCRIPT)
        if member != f"worker {index}":
            running.start_worker(index, SCRIPT)
    started = time.perf_counter()

    assert running.code("worker0") == 1

    assert time.perf_counter() - started < 6 + LATE_S
    missing = "[1] are missing" if member == "worker 1" else "missing: pserver 1"
    assert missing in running.log("worker0")
