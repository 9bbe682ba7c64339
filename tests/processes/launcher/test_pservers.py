"""Jobs whose servers are real pservers, as ``fleet.run_server()`` starts them."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.secrets import SECRET
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.ports import PortReservations

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

LOCAL = ("--server_num=2", "--worker_num=2")

BODY = """
    async def train(session):
        from paramfleet_shared.system.clock import SystemClock
        from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
        from paramfleet_shared.net.rpc.client import Channel
        from paramfleet_shared.net.secret import secret_of
        from paramfleet_shared.net.wire.message import Message

        placement = await session.wait_placement()
        assert list(placement.endpoints) == servers
        for index, endpoint in enumerate(placement.endpoints):
            given = resolve(
                JobSettings, section="", arguments={}, environment=read_environment()
            ).value
            name = f"pserver {index}"
            channel = Channel(
                endpoint, peer=name, clock=SystemClock(), secret=secret_of(given)
            )
            answer = await channel.call(
                "status", Message(fields={}, tensors={}), timeout_s=10.0
            )
            say(f"pserver {index} has {answer.fields['tables']}")
            await channel.close()
        if "STAY" in os.environ:
            say(f"waiting pid={os.getpid()}")
            await session.barrier(who)  # nobody else comes

    if role == "pserver":
        from paramfleet_pserver.app import run
        say(f"waiting pid={os.getpid()}")
        run({"index": rank, "port": int(os.environ["PADDLE_PORT"])})
    else:
        take_part(train)
    """


@pytest.mark.forked(False)
def test_pservers_listen_where_the_launcher_said_and_end_with_the_job(
    launch: Callable[..., Any],
) -> None:
    launched = launch(BODY, *LOCAL)

    code = launched.read_to_end()

    assert code == 0, launched.text
    for worker in range(2):
        for server in range(2):
            assert f"[worker {worker}] pserver {server} has []\n" in launched.lines


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, "(stopped by SIGTERM)")],
)
def test_a_pserver_that_is_stopped_amid_the_job_is_named(
    launch: Callable[..., Any], number: signal.Signals, how: str
) -> None:
    launched = launch(BODY, *LOCAL, environment={"STAY": "1"})
    launched.wait_all("worker 0", "worker 1", "pserver 1")

    os.kill(launched.pids["pserver 1"], number)
    code = launched.read_to_end()

    assert code != 0
    assert launched.said[-1] == f"the job failed: pserver 1 {how}", launched.text
    assert launched.survivors(0.0) == []


def test_ctrl_c_ends_pservers_too(launch: Callable[..., Any]) -> None:
    launched = launch(BODY, *LOCAL, environment={"STAY": "1"})
    launched.wait_all("worker 0", "worker 1", "pserver 0", "pserver 1")

    launched.process.send_signal(signal.SIGINT)

    assert launched.read_to_end() == 130
    assert launched.survivors(0.0) == []


@pytest.mark.forked(False)
def test_a_cold_machine_compiles_once_and_says_so(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    launched = launch(BODY, *LOCAL, environment={"NUMBA_CACHE_DIR": str(tmp_path / "cold")})
    launched.read_until("compiling the table kernels for this machine")

    launched.process.send_signal(signal.SIGINT)

    assert launched.read_to_end() == 130
    assert not launched.pids


def test_a_pserver_that_compiles_says_so_and_joins_only_then(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paramfleet_pserver", "--redis=redis://127.0.0.1:1/0"]
    with PortReservations() as reservations:
        port = reservations.reserve(Host("127.0.0.1")).port
    process = subprocess.Popen(
        tied([*command, f"--admin-port={port}"]),
        env={
            **read_environment(),
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PARAMFLEET_ADMIN_OPEN_READING": "true",
            "PARAMFLEET_SECRET": SECRET,
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr as lines:
        (warning,) = itertools.islice((line for line in lines if "WARNING" in line), 1)
        assert "pserver.compiling" in warning
        assert "for this machine: only the first start after an installation" in warning
        with urlopen(f"http://127.0.0.1:{port}/status") as answer:
            status = json.load(answer)
        process.terminate()
        rest = lines.read()

    assert (status["state"], status["index"]) == ("compiling", None)
    assert "Redis" not in rest
    assert process.returncode == 0
