"""The registry's process is hurt as the system names it, not as it calls itself."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paramfleet_coordinator.api.chaos import Hurter
from paramfleet_coordinator.core.operator_actions import ActionRefusedError
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.settings.hurts import Hurt
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    other = subprocess.Popen(
        tied([sys.executable, "-c", "import sys; sys.stdin.read()"]), stdin=subprocess.PIPE
    )
    yield other
    other.communicate(timeout=60)


@asynccontextmanager
async def calling_itself(pid: int, socket: Path) -> AsyncIterator[RedisStore]:
    """Listen as a Redis would that says it is another process."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip().upper())
            said = b"process_id:%d\r\n" % pid
            text = b"$%d\r\n%s\r\n" % (len(said), said)
            writer.write(text if words[0] == b"INFO" else b"+OK\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, str(socket))
    store = RedisStore(f"unix://{socket}?db=0", clock=SystemClock(), timeout_s=10.0)
    try:
        yield store
    finally:
        await store.close()
        server.close()
        await server.wait_closed()


async def test_a_registry_names_no_other_process_to_be_hurt(
    bystander: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    async with calling_itself(bystander.pid, tmp_path / "s") as store:
        for action in ("kill", "stop"):
            with pytest.raises(ActionRefusedError, match="listens"):
                await Hurter(store).hurt_redis(Hurt(action=action, role="redis", for_s=0.1))

    assert bystander.poll() is None


@pytest.mark.parametrize("pid", [-1, 0, 1])
async def test_nor_a_group_of_them(pid: int, tmp_path: Path) -> None:
    async with calling_itself(pid, tmp_path / "s") as store:
        with pytest.raises(ActionRefusedError):
            await Hurter(store).hurt_redis(Hurt(action="stop", role="redis", for_s=0.1))
