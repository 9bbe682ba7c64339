"""The configuration of a Redis that we start."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.redis.access_list import access_list, job_rights
from paramfleet_shared.discovery.redis.config import ServedRedis, User
from paramfleet_shared.discovery.redis.store import RedisStore, advice_for
from paramfleet_shared.system.clock import SystemClock

JOB = User(name="default", password="s3cret", rights=job_rights("flights"))
SERVED = ServedRedis(users=(JOB,), directory=Path('/tmp/a "b"\n é'), bind="::1", port=6380)


def test_of_a_password_it_has_the_hash_alone() -> None:
    text = SERVED.text()

    assert "s3cret" not in text
    assert (
        "user default on #1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0 "
        "~paramfleet:flights:* -@all +ping "
    ) in text


def test_whoever_reaches_a_socket_of_its_owner_alone_needs_no_password() -> None:
    on_socket = replace(
        SERVED, socket=Path("/run/a/redis.sock"), users=(replace(JOB, password=""),)
    )

    lines = on_socket.text().splitlines()

    assert {"port 0", 'unixsocket "/run/a/redis.sock"', "unixsocketperm 700"} <= set(lines)
    assert any(
        line.startswith("user default on nopass ~paramfleet:flights:*") for line in lines
    )
    assert not any(line.startswith("bind") for line in lines)


def test_what_would_end_a_string_is_escaped() -> None:
    assert 'dir "/tmp/a \\x22b\\x22\\x0a \\xc3\\xa9"' in SERVED.text().splitlines()


def test_it_keeps_what_it_is_told_to_keep() -> None:
    assert "appendonly no" in SERVED.text()
    assert "appendonly yes" in replace(SERVED, persists=True).text()


def test_no_script_comes_along_with_a_call() -> None:
    rights = job_rights("flights").split()

    assert "+evalsha" in rights
    assert not {"+eval", "+script", "+script|load", "+eval_ro", "+function"} & set(rights)


def rules_of(user: str, *, redis: int = 7) -> set[str]:
    text = access_list(
        "flights", {"coordinator": "aa", "pserver": "bb", "worker": "cc"}, redis=redis
    )
    (line,) = [each for each in text.splitlines() if each.startswith(f"user {user} ")]
    return {each for each in line.split() if "~" in each}


def test_members_write_what_says_how_they_are_and_read_the_rest() -> None:
    everything = "~paramfleet:flights:*"
    of_pservers, of_workers = rules_of("pserver"), rules_of("worker")

    assert everything in rules_of("coordinator")
    assert f"%R{everything}" in of_pservers
    assert everything not in of_pservers | of_workers
    assert of_workers - of_pservers == {"~paramfleet:flights:[0-9]*:gather:*"}
    assert not any(
        name in rule
        for rule in of_workers
        for name in ("job", "coordinator", "open", "barrier")
    )


def test_a_redis_of_before_knows_no_keys_that_are_only_read() -> None:
    for user in ("coordinator", "pserver", "worker"):
        assert rules_of(user, redis=6) == {"~paramfleet:flights:*"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:6379/0", "start redis-server on this machine (port 6379)"),
        ("redis://localhost/0", "start redis-server on this machine (port 6379)"),
        ("redis://[::1]:7000", "start redis-server on this machine (port 7000)"),
        ("redis://far.example:6380/1", "Redis runs on far.example, and that its port 6380 can"),
        ("rediss://far.example", "port 6379, with TLS, can be reached"),
        ("unix:///run/a%20b/redis.sock?db=0", "nothing listens at the socket /run/a b/redis"),
    ],
)  # fmt: skip
def test_advice_fits_the_address_that_was_given(url: str, words: str) -> None:
    said = advice_for(url)

    assert words in said
    assert said.endswith("set PARAMFLEET_REDIS to the address of one that runs")
    assert ("let `paramfleet launch` start one" in said) == ("on this machine (" in said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "redis://127.0.0.1/0",
            "a process has the port 6379, and is stopped, busy",
        ),
        ("redis://far.example:6380/1", "Redis runs on far.example, and that its port 6380 can"),
        ("unix:///run/a%20b/redis.sock?db=0", "a process has the socket /run/a b/redis.sock"),
    ],
)
def test_advice_about_a_redis_that_is_silent_does_not_say_that_nothing_listens(
    url: str, words: str
) -> None:
    said = advice_for(url, is_silent=True)

    assert words in said
    assert "nothing listens" not in said
    assert said.endswith("set PARAMFLEET_REDIS to the address of one that runs")


def test_a_redis_that_listens_and_never_answers_is_said_to_be_silent(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"

    async def ask() -> None:
        store = RedisStore(f"unix://{path}?db=0", clock=SystemClock(), timeout_s=0.25)
        try:
            await store.command("PING")
        finally:
            await store.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(NoRedisError, match=r"no answer within 0\.25 s.*a process has the"):
            asyncio.run(ask())
    with pytest.raises(NoRedisError, match="nothing listens at the socket"):
        asyncio.run(ask())
