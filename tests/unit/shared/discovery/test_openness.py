"""What a Redis lets be done, asked of real ones."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from paramfleet_shared.discovery.redis import openness as looking
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.openness import look_for_openness
from paramfleet_shared.discovery.redis.store import derived_password, store_of
from paramfleet_shared.net.secret import JobSecret, new_secret
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock

DANGEROUS = [
    ("ACL", "CONFIG", "DEBUG", "MODULE", "REPLICAOF"),
    ("ACL", "CONFIG", "REPLICAOF"),  # Redis 7 and newer keep the others off by themselves
]


Start = Callable[..., Awaitable[Any]]


async def test_a_redis_that_asks_for_no_password_is_named_with_what_a_stranger_may_run(
    plain_redis: Start,
) -> None:
    plain = await plain_redis()
    openness = await look_for_openness(JobSettings(redis=plain.place))

    assert not openness.asks_for_password
    assert openness.dangerous in DANGEROUS
    (warning,) = openness.warnings()
    assert f"Redis at {plain.place} is open: it can be reached without a password" in warning
    assert f"may run {', '.join(openness.dangerous)} there" in warning
    assert plain.is_running()


async def test_a_password_that_opens_everything_is_named(plain_redis: Start) -> None:
    plain = await plain_redis(password="hush")
    settings = JobSettings(redis=plain.place, redis_password="hush")

    openness = await look_for_openness(settings)

    assert openness.asks_for_password
    assert openness.dangerous in DANGEROUS
    assert "lets the job's user run ACL" in openness.warnings()[0]
    assert "hush" not in openness.warnings()[0]


@pytest.mark.parametrize("bind", [None, "127.0.0.1"])
async def test_a_redis_that_we_start_has_nothing_to_warn_of(
    tmp_path: Path, bind: str | None
) -> None:
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind=bind)
    await server.start()
    try:
        openness = await look_for_openness(JobSettings(redis=server.url))
    finally:
        server.stop()

    assert openness.warnings() == []


async def test_a_redis_that_does_not_answer_is_not_called_open() -> None:
    openness = await look_for_openness(JobSettings(redis="redis://127.0.0.1:1/0"))

    assert openness.warnings() == []


async def test_the_password_of_the_job_s_secret_opens_a_redis_that_has_it(
    tmp_path: Path,
) -> None:
    secret = new_secret()
    password = JobSecret(secret, "flights").redis_password
    server = EmbeddedRedis(tmp_path, clock=SystemClock(), bind="127.0.0.1", password=password)
    await server.start()
    settings = JobSettings(
        job="flights", secret=secret, redis=f"redis://127.0.0.1:{server.port}/0"
    )
    store = store_of(settings, clock=SystemClock(), timeout_s=5.0)
    try:
        assert await store.command("PING")
    finally:
        await store.close()
        server.stop()


async def test_no_connection_stays_open_whose_close_outlasts_the_deadline(
    plain_redis: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = list[Redis](), list[Redis]()
    close = Redis.aclose

    async def close_late(client: Redis, *more: Any) -> None:
        began.append(client)
        await asyncio.sleep(0.3)
        await close(client, *more)
        ended.append(client)

    monkeypatch.setattr(Redis, "aclose", close_late)
    monkeypatch.setattr(looking, "_TIMEOUT_S", 0.2)
    plain = await plain_redis()

    await look_for_openness(JobSettings(redis=plain.place))

    assert began
    assert ended == began


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_redis_without_a_password_is_used_without_that_of_the_secret(
    plain_redis: Start, protocol: int
) -> None:
    plain = await plain_redis()
    place = f"{plain.place}?protocol={protocol}"
    settings = JobSettings(secret=new_secret(), redis=place)
    store = store_of(settings, clock=SystemClock(), timeout_s=5.0)

    assert await store.command("PING")
    assert await store.run("return {'ok'}", [], []) == [b"ok"]
    await store.close()


@pytest.mark.parametrize(
    "given",
    [
        {"redis": "redis://:pw@h/0"},
        {"redis": "redis://h/0?password=pw"},
        {"redis": "unix:///run/redis.sock"},
        {"redis_password": "pw"},
        {"redis_user": "worker"},
        {"secret": ""},
    ],
)
def test_what_is_given_goes_before_the_password_of_the_secret(given: dict[str, str]) -> None:
    common = {"redis": "redis://h/0", "secret": new_secret()}

    assert derived_password(JobSettings(**common))  # type: ignore[arg-type]
    assert derived_password(JobSettings(**{**common, **given})) == ""  # type: ignore[arg-type]
