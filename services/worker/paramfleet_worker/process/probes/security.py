"""What of a job's files, addresses and registry others can reach; nothing is changed."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from redis.exceptions import RedisError

from paramfleet_shared.discovery.redis.connections import redis_client
from paramfleet_shared.files.visibility import is_hidden, others_bits, user_of
from paramfleet_shared.net.rpc.endpoint import MalformedEndpointError, split_endpoint
from paramfleet_shared.settings.config import JobSettings, without_password
from paramfleet_worker.core.doctor.security import (
    ListenerFacts,
    OpenRedisFacts,
    PathFacts,
    PathKind,
)
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.addresses import hosts_of_this_machine
from paramfleet_worker.process.probes.kernel_sockets import kernel_sockets
from paramfleet_worker.process.probes.network import addresses_of, are_loopback

__all__ = ["look_at_listener", "look_at_path", "look_at_place", "look_at_redis"]

_TIMEOUT_S = 3.0

Command = Callable[..., Awaitable[Any]]

_DANGEROUS = {
    "CONFIG": ("CONFIG", "GET", "maxmemory"),
    "MODULE": ("MODULE", "LIST"),
}
"""By command: a call of it that changes nothing."""


def look_at_path(kind: PathKind, path: Path) -> PathFacts | None:
    """Return how others see a file or folder; None if there is none."""
    try:
        fact = path.stat()
    except OSError:
        return None
    shared = others_bits(fact.st_gid)
    is_foreign = fact.st_uid not in {0, os.geteuid()}
    return PathFacts(
        kind=kind,
        path=str(path),
        mode=stat.S_IMODE(fact.st_mode),
        readable_by_others=bool(fact.st_mode & shared & 0o044) and not is_hidden(path),
        writable_by_others=bool(fact.st_mode & shared & 0o022) and not is_hidden(path),
        owner=user_of(fact.st_uid) if is_foreign else "",
    )


def look_at_place(use: str, host: str, port: int) -> ListenerFacts:
    """Return whether what is to be listened on would be reached from beyond this machine."""
    return ListenerFacts(
        use=cast("Any", use),
        process="this process",
        address=f"{host} port {port or '(any)'}",
        is_loopback=are_loopback(addresses_of(host)),
    )


def look_at_listener(use: str, process: str, endpoint: str) -> ListenerFacts | None:
    """Return whether an address is reached from beyond this machine; None if it is none.

    A process of this machine may listen on more than what it says of itself.
    """
    try:
        host, port = split_endpoint(endpoint)
    except MalformedEndpointError:
        return None
    bound = _bound_to(port) if hosts_of_this_machine([Host(host)], own=None) else ()
    addresses = bound or addresses_of(host)
    return ListenerFacts(
        use=cast("Any", use),
        process=process,
        address=endpoint if not bound else f"{', '.join(bound)} port {port}",
        is_loopback=are_loopback(addresses) if addresses else False,
    )


async def look_at_redis(settings: JobSettings) -> OpenRedisFacts | None:
    """Return what the registry permits to others and to the job; None without an answer."""
    parts = urlsplit(settings.redis)
    is_socket = parts.scheme == "unix"
    facts = OpenRedisFacts(
        address=without_password(settings.redis),
        is_private=is_socket and is_hidden(Path(parts.path)),
        is_loopback=is_socket or are_loopback(addresses_of(parts.hostname or "")),
        speaks_tls=parts.scheme == "rediss",
    )
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    options: dict[str, Any] = {"ssl_ca_certs": settings.redis_ca} if settings.redis_ca else {}
    own = {"username": settings.redis_user, "password": settings.redis_password}
    as_stranger = await _may(bare, options)
    if as_stranger is not None:
        return replace(facts, lets_strangers_in=True, dangerous=as_stranger)
    given = {name: value for name, value in own.items() if value}
    as_member = await _may(settings.redis, {**options, **given})
    return None if as_member is None else replace(facts, dangerous=as_member)


async def _may(url: str, options: dict[str, Any]) -> tuple[str, ...] | None:
    """Return which dangerous commands a client may run; None if it has no access."""
    client = redis_client(url, **options)
    call = cast("Command", client.execute_command)

    async def runs(*words: str) -> bool:
        try:
            await asyncio.wait_for(call(*words), _TIMEOUT_S)
        except RedisError:
            return False
        return True

    try:
        if not await runs("PING"):
            return None
        return tuple([name for name, words in _DANGEROUS.items() if await runs(*words)])
    except (OSError, TimeoutError):
        return None
    finally:
        await client.aclose()


def _bound_to(port: int) -> tuple[str, ...]:
    """Return the addresses of this machine that are listened on at a port."""
    ends = (each.local for each in kernel_sockets() if each.is_listening)
    return tuple(dict.fromkeys(address for address, number in ends if number == port))
