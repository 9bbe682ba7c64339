"""A stream that a test writes, and servers of folders in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.serving.streams import Served, Stream

from paramfleet_serving.app import StreamServer
from paramfleet_serving.config import ServingSettings
from paramfleet_serving.following.folder import FolderSource
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.settings.config import resolve
from paramfleet_shared.system.clock import SystemClock

SECRET = "a secret of tests, which is long enough"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path / "stream")
    made.begin()
    return made


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves a folder."""
    async with AsyncExitStack() as stack:

        async def start(folder: Path, *, role: Any = "admin", **settings: Any) -> Served:
            given: dict[str, Any] = {
                "secret": SECRET,
                "poll_s": 0.01,
                "retry_s": 0.05,
            } | settings
            follows = given.pop("follows", None)
            resolved = resolve(
                ServingSettings,
                section="serving",
                arguments={"source": str(folder)} | given,
                environment={},
            )
            clock = SystemClock()
            source = (
                None if follows is None else FolderSource(follows, clock=clock, poll_s=0.01)
            )
            server = StreamServer(resolved, clock=clock, source=source)
            loop = asyncio.get_running_loop()
            started: asyncio.Future[Any] = loop.create_future()
            task: asyncio.Future[Any] = loop.create_task(server.serve(started))

            async def end() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            stack.push_async_callback(end)
            done, _ = await asyncio.wait([started, task], return_when="FIRST_COMPLETED")
            if task in done:
                task.result()
            token = JobSecret(SECRET, "default").token(role) if role else ""
            headers = {"Authorization": f"Bearer {token}"} if role else {}
            session = aiohttp.ClientSession(headers=headers)
            http = await stack.enter_async_context(session)
            return Served(server, started.result(), http, end)

        yield start
