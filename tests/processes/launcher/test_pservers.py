"""Jobs whose servers are real pservers, as ``fleet.run_server()`` starts them."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LOCAL = ("--server_num=2", "--worker_num=2")

BODY = """
    async def train(session):
        from paramfleet_shared.clock import SystemClock
        from paramfleet_shared.rpc.client import Channel
        from paramfleet_shared.wire.message import Message

        placement = await session.wait_placement()
        assert list(placement.endpoints) == servers
        for index, endpoint in enumerate(placement.endpoints):
            channel = Channel(endpoint, peer=f"pserver {index}", clock=SystemClock())
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
