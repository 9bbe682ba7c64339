"""Redis and the coordinator go away while a job trains, for a while or for good."""

import signal
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_long.py"
QUICK_LEASE = {"PARAMFLEET_LEASE_TTL_S": "6"}
"""A coordinator that is gone holds the job until its lease is over."""
MODES = pytest.mark.parametrize("mode", ["sync", "async", "geo"])


def train_on(running: Any) -> None:
    """Wait until both workers have taken forty more steps."""
    for name in ("worker0", "worker1"):
        said = running.log(name).count("trained ")
        running.wait_for(name, "trained ", times=said + 2)


@MODES
def test_training_goes_on_without_a_coordinator_and_ends_with_its_successor(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start(SCRIPT, "--mode", mode, "--until", str(enough), **QUICK_LEASE)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    running.send("coordinator", signal.SIGKILL)
    assert running.code("coordinator") == -signal.SIGKILL
    train_on(running)
    running.start_coordinator(name="successor")
    enough.touch()

    ended = running.end()
    del ended.codes["coordinator"]
    assert set(ended.codes.values()) == {0}, ended.story()


def test_a_coordinator_that_stays_away_is_named_by_everybody(jobs: Any) -> None:
    running = jobs.start(SCRIPT, PARAMFLEET_OUTAGE_GRACE_S="2", **QUICK_LEASE)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    running.send("coordinator", signal.SIGKILL)

    for name in ("worker0", "worker1", "pserver0", "pserver1"):
        assert running.code(name) == 1
        assert "the job failed: coordinator 0: gone for" in running.log(name)


@MODES
async def test_training_goes_on_without_redis_and_finds_it_again_empty(
    jobs: Any, mode: str, tmp_path: Path, own_redis: EmbeddedRedis
) -> None:
    await own_redis.start()
    enough = tmp_path / "enough"
    running = jobs.start(
        SCRIPT, "--mode", mode, "--until", str(enough), PARAMFLEET_REDIS=own_redis.url
    )
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    own_redis.stop()
    train_on(running)
    await own_redis.start()
    train_on(running)
    enough.touch()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()


async def test_a_redis_that_stays_away_is_named_by_everybody(
    jobs: Any, own_redis: EmbeddedRedis
) -> None:
    await own_redis.start()
    running = jobs.start(
        SCRIPT, PARAMFLEET_REDIS=own_redis.url, PARAMFLEET_OUTAGE_GRACE_S="2", **QUICK_LEASE
    )
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    own_redis.stop()

    for name in running.pids:
        assert running.code(name) == 1
        assert f"no answer from Redis at {own_redis.url}" in running.log(name)
