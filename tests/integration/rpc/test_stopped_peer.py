"""A peer that the system has stopped still owes nobody more than his deadline."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from paramfleet_shared.net.rpc.client import DeadlineExceededError
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

SERVER = """
import asyncio
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.net.rpc.server import RpcServer

async def main():
    server = RpcServer({"echo": lambda r: r.message}, name="pserver 0", clock=SystemClock())
    print(await server.start("127.0.0.1"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.processes
async def test_a_stopped_process_is_given_up_at_the_deadline_and_found_again(
    peers: Any,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *tied([sys.executable, "-c", SERVER]), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), LATE_S))
        channel = peers.channel(f"127.0.0.1:{port}", limits=Limits(probe_timeout_s=0.05))
        await channel.call("echo", Message(), timeout_s=LATE_S)

        os.kill(process.pid, signal.SIGSTOP)
        started = peers.clock.monotonic()
        with pytest.raises(DeadlineExceededError, match="pserver 0"):
            await channel.call("echo", Message(), timeout_s=0.2)
        assert peers.clock.monotonic() - started < 0.2 + LATE_S
        os.kill(process.pid, signal.SIGCONT)

        await channel.call("echo", Message(), timeout_s=LATE_S)
    finally:
        process.kill()
        await process.wait()
