"""A registry over TLS, with a certificate of the job's own authority."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from typing_extensions import override

from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis, RedisServerDiedError
from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.commands.certs import certs


class TlsRedis(EmbeddedRedis):
    """A redis-server with a second port, which speaks TLS."""

    def __init__(self, folder: Path, *, tls_port: int) -> None:
        super().__init__(folder, clock=SystemClock(), bind="127.0.0.1", password="pw")
        self._folder = folder
        self.tls_port = tls_port

    @override
    def _config(self, port: int) -> str:
        folder = self._folder
        lines = [
            f"tls-port {self.tls_port}",
            f'tls-ca-cert-file "{folder / "ca.crt"}"',
            f'tls-cert-file "{folder / "redis.crt"}"',
            f'tls-key-file "{folder / "redis.key"}"',
            "tls-auth-clients no",
        ]
        return super()._config(port) + "\n".join([*lines, ""])


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[TlsRedis]:
    words = ["init", "--dir", str(tmp_path), "--role", "redis", "--host", "127.0.0.1"]
    assert CliRunner().invoke(certs, words).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    redis = TlsRedis(tmp_path, tls_port=port)
    try:
        await redis.start()
    except RedisServerDiedError:
        if "tls-port" in (tmp_path / "redis-server.log").read_text():
            pytest.skip("this redis-server was built without TLS")
        raise
    yield redis
    redis.stop()


async def test_the_registry_answers_over_tls(redis: TlsRedis, tmp_path: Path) -> None:
    address = f"rediss://:pw@127.0.0.1:{redis.tls_port}/0"
    settings = JobSettings(redis=address, redis_ca=str(tmp_path / "ca.crt"))
    store = store_of(settings, clock=SystemClock(), timeout_s=5.0)

    assert await store.command("PING")
    await store.close()


async def test_a_registry_of_another_authority_is_not_believed(redis: TlsRedis) -> None:
    settings = JobSettings(redis=f"rediss://:pw@127.0.0.1:{redis.tls_port}/0")
    store = store_of(settings, clock=SystemClock(), timeout_s=5.0)

    with pytest.raises(NoRedisError, match="certificate verify failed"):
        await store.command("PING")
    await store.close()
