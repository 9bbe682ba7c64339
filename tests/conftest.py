"""What tests of every room may ask for."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.discovery.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a real redis-server that lives as long as the test session."""
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"), clock=SystemClock())
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def job_name() -> str:
    """Return a job name no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """Return a redis-server of this test alone, not started; it forgets all at a restart."""
    server = EmbeddedRedis(tmp_path, clock=SystemClock())
    try:
        yield server
    finally:
        server.stop()
