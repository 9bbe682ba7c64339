"""What the registry and the coordinator answer, asked as a member would ask.

Nothing that is there is changed: the one key that is written is the doctor's own, and it
lasts a second.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from paramfleet_shared.discovery.redis.connections import redis_client
from paramfleet_shared.discovery.redis.openness import look_for_openness
from paramfleet_shared.discovery.redis.scripts import TICK, Keys
from paramfleet_shared.discovery.redis.store import account_of, derived_password, refusal_of
from paramfleet_shared.net.rpc.endpoint import split_endpoint
from paramfleet_shared.net.tls import Tls
from paramfleet_shared.settings.config import JobSettings
from paramfleet_worker.core.doctor.facts import MemberFacts, RedisFacts
from paramfleet_worker.process.probes.network import addresses_of, are_loopback

__all__ = ["ask_registry"]

TIMEOUT_S = 3.0

_TICK = hashlib.sha1(TICK.encode(), usedforsecurity=False).hexdigest()
"""By which Redis knows a script that every member's heartbeat needs the like of."""

Command = Callable[..., Awaitable[Any]]


async def ask_registry(
    settings: JobSettings, tls: Tls | None, *, role: str
) -> tuple[RedisFacts, tuple[MemberFacts, ...]]:
    """Return what Redis answers, and what the job's members published there.

    Args:
        settings: Where it is, and who we are.
        tls: Our certificate, to call the coordinator with; None calls it without TLS.
        role: Whose rights to look for.
    """
    host = urlsplit(settings.redis).hostname or ""
    facts = RedisFacts(
        host=host,
        is_loopback=settings.redis.startswith("unix:") or are_loopback(addresses_of(host)),
        speaks_tls=settings.redis.startswith("rediss:"),
    )
    options = account_of(settings)
    derived = derived_password(settings)
    if derived:
        options["password"] = derived
    client = redis_client(settings.redis, **options)
    try:
        return await _ask(client, facts, settings, tls=tls, role=role)
    except (RedisError, OSError, TimeoutError) as error:
        refusal = refusal_of(error)
        if refusal is not None:
            return replace(facts, refusal=str(refusal)), ()
        reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
        return replace(facts, is_reachable=False, reason=reason), ()
    finally:
        await client.aclose()


async def _ask(
    client: Redis, facts: RedisFacts, settings: JobSettings, *, tls: Tls | None, role: str
) -> tuple[RedisFacts, tuple[MemberFacts, ...]]:
    """Ask Redis.

    Raises:
        RedisError: if it doesn't answer, or refuses access.
        TimeoutError: if it doesn't answer in time.
    """

    async def command(*words: str | int) -> Any:
        call = cast("Command", client.execute_command)
        return await asyncio.wait_for(call(*words), TIMEOUT_S)

    started = time.perf_counter()
    seconds, micros = await command("TIME")
    took_s = time.perf_counter() - started
    now = time.time()  # noqa: TID251 -- wall clocks are what is compared
    info = cast("dict[str, Any]", await command("INFO"))
    keys = Keys(settings.job)
    openness = await look_for_openness(settings)
    facts = replace(
        facts,
        round_trip_s=took_s,
        skew_s=int(seconds) + int(micros) / 1e6 - (now - took_s / 2),
        version=str(info.get("redis_version", "0")),
        max_bytes=int(info.get("maxmemory", 0)),
        used_bytes=int(info.get("used_memory", 0)),
        policy=info.get("maxmemory_policy"),
        persists=bool(info.get("aof_enabled")) or await _saves(command),
        asks_for_password=openness.asks_for_password,
        dangerous=openness.dangerous,
        denied=await _denied(command, keys, is_coordinator=role == "coordinator"),
    )
    members: tuple[MemberFacts, ...] = ()
    if not facts.denied:
        facts, members = await _look_at_job(command, facts, keys, tls)
    return facts, members


async def _saves(command: Command) -> bool | None:
    try:
        answer = await command("CONFIG", "GET", "save")
    except ResponseError:  # a user of the access list may not ask
        return None
    value = answer.get("save", "") if isinstance(answer, Mapping) else answer[-1]
    return bool(value)


async def _denied(command: Command, keys: Keys, *, is_coordinator: bool) -> tuple[str, ...]:
    """Return what a member needs and may not run."""
    key = keys.of_job("doctor")
    wanted: dict[str, tuple[str | int, ...]] = {
        "EVALSHA": ("EVALSHA", _TICK, 0),  # without keys it fails before it does anything
        "HSET": ("HSET", key, "a", 1),
        "PEXPIRE": ("PEXPIRE", key, 1000),
        "GET": ("GET", keys.of_job("epoch")),
        "HGET": ("HGET", keys.of_job("coordinator"), "record"),
        "HGETALL": ("HGETALL", keys.of_job("lives")),
        "EXISTS": ("EXISTS", keys.of_job("coordinator")),
        **({"SMEMBERS": ("SMEMBERS", keys.of_job("none"))} if is_coordinator else {}),
    }
    denied = []
    for name, words in wanted.items():
        answer, needed = await _error_of(command, *words), name
        if isinstance(answer, NoScriptError):
            needed = "SCRIPT LOAD"
            answer = await _error_of(command, "SCRIPT", "LOAD", TICK)
        if answer is not None and refusal_of(answer) is not None:
            denied.append(needed)
    return tuple(denied)


async def _error_of(command: Command, *words: str | int) -> ResponseError | None:
    try:
        await command(*words)
    except ResponseError as error:
        return error
    return None


async def _look_at_job(
    command: Command, facts: RedisFacts, keys: Keys, tls: Tls | None
) -> tuple[RedisFacts, tuple[MemberFacts, ...]]:
    record = await command("HGET", keys.of_job("coordinator"), "record")
    epoch = int(await command("GET", keys.of_job("epoch")) or 0)
    if record is not None:
        coordinator = json.loads(record)
        answers, skew_s = await _ask_coordinator(str(coordinator.get("admin", "")), tls)
        facts = replace(
            facts,
            coordinator=str(coordinator.get("endpoint", "")),
            coordinator_answers=answers,
            coordinator_skew_s=skew_s,
        )
    job, published = [keys.of_run(epoch)[index] for index in (3, 7)]
    sizes = _plain(await command("HGETALL", job)).get("sizes")
    if sizes and record is not None:
        facts = replace(facts, running_sizes=json.loads(sizes))
    members = [
        MemberFacts(name=name.replace(":", " "), versions=json.loads(text).get("versions", {}))
        for name, text in sorted(_plain(await command("HGETALL", published)).items())
    ]
    return facts, tuple(members)


async def _ask_coordinator(admin: str, tls: Tls | None) -> tuple[bool, float | None]:
    """Return whether the coordinator answers, and how far its clock is before ours."""
    writer = None
    try:
        host, port = split_endpoint(admin)
        context = tls.expects("coordinator", protocol="http/1.1").context() if tls else None
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(f"HEAD /healthz HTTP/1.1\r\nHost: {admin}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return False, None
    finally:
        if writer is not None:  # TLS would wait for the other side's end, and the loop ends
            writer.transport.abort()
            await _gone(writer)
    now = time.time()  # noqa: TID251 -- wall clocks are what is compared
    for line in head.decode("latin-1").split("\r\n"):
        if line.lower().startswith("date:"):
            date = parsedate_to_datetime(line[5:].strip())
            return True, date.timestamp() + 0.5 - now  # it says whole seconds
    return True, None


async def _gone(writer: asyncio.StreamWriter) -> None:
    """Wait until the socket of an aborted connection is closed."""
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _plain(answer: Any) -> dict[str, str]:
    """Return a hash with text for keys and values."""
    pairs = (
        answer.items() if isinstance(answer, Mapping) else zip(*[iter(answer)] * 2, strict=True)
    )
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
