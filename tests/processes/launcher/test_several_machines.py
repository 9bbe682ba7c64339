"""A job over several launchers that know each other by address alone.

Loopback has many addresses, so that each launcher gets one of its own with ``--host_ip``.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

FIRST, SECOND = "127.0.0.1", "127.0.0.2"

LEASE = {"PARAMFLEET_LEASE_TTL_S": "4"}
SECRET = {"PARAMFLEET_SECRET": "several machines have the same secret"}

BODY = """
    async def train(session):
        if who == "worker 1":
            await opened("go")
    take_part(train)
    """

Machine = Callable[..., Any]


@pytest.fixture
def on(launch: Callable[..., Any], free_port: Callable[..., int]) -> Machine:
    """Return a function that gives the same command to one machine after the other."""
    options = (
        f"--servers={FIRST}:{free_port()},{SECOND}:{free_port(SECOND)}",
        f"--workers={FIRST}:{free_port()},{SECOND}:{free_port(SECOND)}",
        f"--coordinator={FIRST}:{free_port()}",
        f"--redis=redis://{FIRST}:{free_port()}/0",
    )

    def start(host: str, environment: dict[str, str] = SECRET) -> Any:
        own = (f"--host_ip={host}", f"--log_dir=log-{host}")
        return launch(BODY, *options, *own, environment=LEASE | environment)

    return start


@pytest.fixture
def go(tmp_path: Any) -> Callable[[], object]:
    """Return a function that lets worker 1 finish."""
    os.mkfifo(tmp_path / "go")
    return lambda: (tmp_path / "go").write_text("go")


def test_a_machine_whose_worker_is_done_serves_the_others_until_they_are(
    on: Machine, go: Callable[[], object]
) -> None:
    second, first = on(SECOND), on(FIRST)
    first.read_until("[worker 0] done")
    second.wait_all("worker 1")

    assert first.process.poll() is None
    go()

    assert (first.read_to_end(), second.read_to_end()) == (0, 0), first.text + second.text
    assert sorted(path.name for path in (first.cwd / f"log-{SECOND}").iterdir()) == [
        "launcherlog.pserver-1",
        "serverlog.1",
        "workerlog.1",
    ]


@pytest.mark.usefixtures("go")
def test_a_death_on_one_machine_is_named_on_the_others_at_once(on: Machine) -> None:
    first, second = on(FIRST), on(SECOND)
    first.read_until("[worker 0] done")
    second.wait_all("worker 1")

    os.kill(second.pids["worker 1"], signal.SIGKILL)
    started = time.perf_counter()
    codes = second.read_to_end(), first.read_to_end()

    assert codes == (137, 1)
    assert time.perf_counter() - started < 4 + LATE_S
    assert second.said[-1] == "the job failed: worker 1 was killed by SIGKILL"
    assert first.said[-1] == (
        "the job failed: worker 1 on another machine (was killed by SIGKILL)"
    )


@pytest.mark.usefixtures("go")
@pytest.mark.forked(False)
def test_ctrl_c_on_one_machine_ends_the_job_on_all(on: Machine) -> None:
    first, second = on(FIRST), on(SECOND)
    first.read_until("[worker 0] done")
    second.wait_all("worker 1")

    first.process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    codes = first.read_to_end(), second.read_to_end()

    assert codes == (130, 1)
    assert time.perf_counter() - started < 6 + LATE_S
    assert second.said[-1] == (
        "the job failed: worker 0 on another machine (its launcher was stopped by SIGINT)"
    )


@pytest.mark.usefixtures("go")
def test_a_machine_that_vanishes_is_noticed_when_its_leases_are_over(on: Machine) -> None:
    first, second = on(FIRST), on(SECOND)
    first.read_until("[worker 0] done")
    second.wait_all("worker 1")

    os.killpg(os.getpgid(second.process.pid), signal.SIGKILL)
    code = first.read_to_end()

    assert code == 1
    assert " 1 on another machine (" in first.said[-1]
    assert second.survivors(1.0) == []


def test_several_machines_refuse_to_start_open_and_say_what_to_do(on: Machine) -> None:
    open_job = on(FIRST, {})

    assert open_job.read_to_end() == 2
    assert re.search(r"job \S+ has neither certificates nor a secret", open_job.text)
    assert "`paramfleet secret FILE` makes one" in open_job.text
    assert open_job.said == []


@pytest.mark.usefixtures("go")
def test_an_open_job_on_several_machines_is_warned_of_on_every_start(on: Machine) -> None:
    open_job = on(FIRST, {"PARAMFLEET_INSECURE": "true"})

    open_job.read_until("everyone who can reach its ports can read, change and end it")


def test_certificates_are_no_password_of_a_redis_on_a_port(on: Machine, tmp_path: Any) -> None:
    half_open = on(FIRST, {"PARAMFLEET_TLS_DIR": str(tmp_path)})

    assert half_open.read_to_end() == 2
    assert "would accept commands from everyone who can reach it" in half_open.text
