"""Two launches of one name on a shared Redis: the second is refused, the first goes on."""

import asyncio
import json
import os
import re
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.system.clock import SystemClock

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

LEASE = {"PARAMFLEET_LEASE_TTL_S": "3"}

BODY = """
    async def train(session):
        await opened("go")
    take_part(train)
    """

ONE_EACH = ("--server_num=1", "--worker_num=1")

Run = Callable[..., Any]


@pytest.fixture
def start(launch: Run, redis_url: str, job_name: str, tmp_path: Path) -> Run:
    """Return a function that launches the job, each time as if on another machine."""
    os.mkfifo(tmp_path / "go")
    number = iter(range(9))

    def start(*options: str, **environment: str) -> Any:
        apart = tmp_path / f"run-{next(number)}"
        given = {**LEASE, "PARAMFLEET_RUNTIME_DIR": str(apart), **environment}
        own = (f"--redis={redis_url}", f"--log_dir={apart / 'log'}", *options)
        return launch(BODY, *ONE_EACH, *own, environment=given)

    return start


def held(admin_url: str, job: str) -> dict[str, Any]:
    """Return what the registry holds of a job, but what heartbeats change."""

    async def read() -> dict[str, Any]:
        store = RedisStore(admin_url, clock=SystemClock(), timeout_s=2.0)
        try:
            names = await store.command("KEYS", f"paramfleet:{job}:*")
            found: dict[str, Any] = {"keys": sorted(name.decode() for name in names)}
            keys = Keys(job).of_run(1)
            for key in (keys[2], keys[3], keys[6]):  # lives, job, ends
                found[key] = await store.command("HGETALL", key)
            members = await store.command("HGETALL", keys[4])  # a member writes it twice
            found[keys[4]] = {name: json.loads(record) for name, record in members.items()}
            found["epoch"] = await store.command("GET", keys[0])
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_second_launch_of_a_name_is_refused_and_leaves_the_first_alone(
    start: Run, redis_server: EmbeddedRedis, job_name: str, tmp_path: Path
) -> None:
    first = start(f"--job={job_name}")
    first.wait_all("worker 0")
    job = Keys(job_name).of_run(1)[3]
    while (before := held(redis_server.admin_url, job_name))[job][b"state"] != b"training":
        continue  # the coordinator writes it just after the placement

    second = start(f"--job={job_name}")
    code = second.read_to_end()

    assert code == 2, second.text
    refusal = second.text
    assert f"job {job_name!r} runs already" in refusal
    assert "--job" in refusal
    assert f"process {first.process.pid}" in refusal or "coordinator is process" in refusal
    assert held(redis_server.admin_url, job_name) == before
    (tmp_path / "go").write_text("go")
    assert first.read_to_end() == 0, first.text


def test_of_two_launches_at_once_one_trains_and_the_other_is_refused(
    start: Run, job_name: str
) -> None:
    both = [start(f"--job={job_name}"), start(f"--job={job_name}")]
    ended = first_to_end(both)
    (other,) = [one for one in both if one is not ended]
    other.wait_all("worker 0")

    assert ended.read_to_end() == 2, ended.text
    assert f"job {job_name!r} runs already" in ended.text
    assert other.process.poll() is None
    (other.cwd / "go").write_text("go")
    assert other.read_to_end() == 0, other.text


def first_to_end(launches: list[Any]) -> Any:
    ends = {os.pidfd_open(one.process.pid): one for one in launches}
    ready, _, _ = select.select(list(ends), [], [], 40)
    assert ready, "neither was refused"
    for descriptor in ends:
        os.close(descriptor)
    return ends[ready[0]]


def test_a_launch_that_was_killed_blocks_the_next_for_no_longer_than_its_lease(
    start: Run, job_name: str, tmp_path: Path
) -> None:
    first = start(f"--job={job_name}")
    first.wait_all("worker 0")
    first.process.send_signal(signal.SIGKILL)

    second = start(f"--job={job_name}")
    second.wait_all("worker 0")
    (tmp_path / "go").write_text("go")

    assert second.read_to_end() == 0, second.text


def test_a_launch_without_a_name_gets_one_of_its_own(start: Run, tmp_path: Path) -> None:
    both = [start(), start()]
    for one in both:
        one.wait_all("worker 0")

    names = [
        re.search(r"^\[launcher\] job (train-[0-9a-f]{6}): ", one.text, re.MULTILINE)
        for one in both
    ]

    assert all(names), both[0].text
    assert len({name[1] for name in names if name}) == 2
    for _ in both:
        (tmp_path / "go").write_text("go")
    assert [one.read_to_end() for one in both] == [0, 0], both[0].text + both[1].text


def test_a_run_that_ended_is_followed_by_another_of_its_name_at_once(
    start: Run, job_name: str, tmp_path: Path
) -> None:
    for _ in range(2):
        one = start(f"--job={job_name}")
        one.wait_all("worker 0")
        (tmp_path / "go").write_text("go")
        assert one.read_to_end() == 0, one.text
