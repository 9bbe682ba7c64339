"""The coordinator as a process of its own."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]

START_S = 40.0
"""Seconds that a process may take to start on a busy machine."""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(redis_url: str, job_name: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a coordinator process; its log is in ``tmp_path/log``."""
    started = []
    environment = {**read_environment(), "PARAMFLEET_SECRET": SECRET}

    def start(**options: Any) -> "subprocess.Popen[bytes]":
        given = {"job": job_name, "redis": redis_url, "finish_grace_s": 3, **options}
        given = {"lease_ttl_s": 1.2, "lease_renew_s": 0.1, **given}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-m", "paramfleet_coordinator", *words]
            process = subprocess.Popen(tied(command), stderr=log, stdout=log, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def exit_of(process: "subprocess.Popen[bytes]") -> int:
    return await asyncio.to_thread(process.wait, START_S + LATE_S)


async def test_a_killed_coordinator_is_followed_by_another_in_the_middle_of_a_barrier(
    stage: Any, redis_url: str, job_name: str, start: Start
) -> None:
    async with stage(redis_url, job_name) as job:
        first = start(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        async with asyncio.TaskGroup() as waits:
            waits.create_task(workers[0].session.barrier("middle"))
            await job.standing("middle", 1)
            first.kill()
            second = start(worker_num=2)
            waits.create_task(workers[1].session.barrier("middle"))
        await asyncio.gather(*(worker.session.mark_done() for worker in workers))
        ends = [await worker.ends_with() for worker in workers]
        await job.sweep()

        assert ends == [None, None]
        assert await exit_of(second) == 0


async def test_a_coordinator_that_was_stopped_for_a_while_declares_nobody_dead(
    stage: Any, redis_url: str, job_name: str, start: Start
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = start(worker_num=2)
        workers, _ = await job.crew(workers=2, pservers=1)

        coordinator.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        coordinator.send_signal(signal.SIGCONT)
        await asyncio.gather(*(worker.session.barrier("after") for worker in workers))

        assert coordinator.poll() is None
        assert workers[0].session.failure() is None


@pytest.mark.forked(False)
async def test_a_failed_job_exits_with_1_and_one_line_that_says_why(
    stage: Any, redis_url: str, job_name: str, start: Start, tmp_path: Path
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = start()
        workers, pservers = await job.crew(workers=1, pservers=1)

        await workers[0].session.fail("out of memory")
        error = await pservers[0].ends_with()
        status = await exit_of(coordinator)

        assert isinstance(error, JobFailedError)
        assert status == 1
        last = (tmp_path / "log").read_text().splitlines()[-1]
        assert "coordinator.ended" in last
        assert "the job failed: worker 0: out of memory" in last


async def test_a_terminated_coordinator_gives_its_lease_back(
    stage: Any, redis_url: str, job_name: str, start: Start, tmp_path: Path
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = start(lease_ttl_s=60)
        await job.join("worker", 0, lease_ttl_s=60.0)

        coordinator.terminate()
        status = await exit_of(coordinator)

        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        job_registry = await Registry(store, job=job_name).find_coordinator()
        await store.close()
        assert job_registry is None
        assert status == 1
        assert "coordinator.stopped why='signal SIGTERM'" in (tmp_path / "log").read_text()


async def test_its_settings_are_told_at_the_start_with_their_origins(
    stage: Any, redis_url: str, job_name: str, start: Start, tmp_path: Path
) -> None:
    async with stage(redis_url, job_name) as job:
        start()
        await job.join("worker", 0)

        log = (tmp_path / "log").read_text()
        assert f"setting job = '{job_name}' (argument)" in log
        assert "(default)" not in log, "what nobody has given is no news"
        assert "coordinator.serving rpc=127.0.0.1:" in log


async def test_a_wrong_setting_exits_with_2_and_without_redis_it_exits_with_1(
    start: Start, tmp_path: Path
) -> None:
    wrong = start(server_num=9)
    lonely = start(redis="redis://127.0.0.1:1", join_timeout_s=0.2)

    assert (await exit_of(wrong), await exit_of(lonely)) == (2, 1)
    log = (tmp_path / "log").read_text()
    assert "num_shards = 8: must be at least server_num (9)" in log
    assert "coordinator: no answer from Redis at redis://127.0.0.1:1" in log
