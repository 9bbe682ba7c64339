"""Whether a Redis that somebody else started is open: whom it lets in, and to do what.

Asked of Redis itself. What is tried has no effect where it is allowed: each command is given
a name that doesn't exist, or a value that it refuses.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from paramfleet_shared.discovery.redis.connections import redis_client
from paramfleet_shared.discovery.redis.store import account_of, derived_password, refusal_of
from paramfleet_shared.settings.config import JobSettings, without_password

__all__ = ["Openness", "look_for_openness"]

Call = Callable[..., Awaitable[Any]]

_TIMEOUT_S = 2.0
"""Of all questions together."""

_NOTHING = "paramfleet-no-such-name"

_PROBES = {
    "ACL": ("ACL", "DELUSER", _NOTHING),
    "CONFIG": ("CONFIG", "SET", _NOTHING, "0"),
    "DEBUG": ("DEBUG", "OBJECT", _NOTHING),
    "MODULE": ("MODULE", "UNLOAD", _NOTHING),
    "REPLICAOF": ("REPLICAOF", _NOTHING, "no-port"),
}
"""By what it stands for: with each, whoever may run it can take over the server's account."""

_REMEDY = (
    "give it an access list that keeps each user to the commands and keys of its job: "
    "`paramfleet certs redis-acl` writes one"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Openness:
    """What a Redis lets be done."""

    where: str
    """Its address, without a password."""

    asks_for_password: bool = True
    """Whether a client needs one; of a Unix socket, whether only its owner has access."""

    dangerous: tuple[str, ...] = ()
    """Commands that the job's own user may run, or any client if no password is required."""

    def warnings(self) -> list[str]:
        """Return what is open, in a sentence each; empty for a closed one."""
        may = f"and may run {', '.join(self.dangerous)} there" if self.dangerous else ""
        if not self.asks_for_password:
            text = f"Redis at {self.where} is open: it can be reached without a password {may}"
            return [f"{text.rstrip()}; {_REMEDY}"]
        if self.dangerous:
            text = f"Redis at {self.where} lets the job's user run {', '.join(self.dangerous)}"
            return [f"{text}: its password gives the rights of the server's account; {_REMEDY}"]
        return []


async def look_for_openness(settings: JobSettings) -> Openness:
    """Ask a Redis what it lets be done; one that doesn't answer is not called open.

    Args:
        settings: Where it is, and the job's account there.
    """
    where = without_password(settings.redis)
    asks = True
    dangerous: tuple[str, ...] = ()
    until = asyncio.get_running_loop().time() + _TIMEOUT_S
    with contextlib.suppress(TimeoutError, OSError, RedisError):
        asks = not await _lets_strangers_in(settings, until)
        account = account_of(settings)
        password = derived_password(settings)
        if password and asks:
            account["password"] = password
        dangerous = await _dangerous(settings.redis, account, until)
    return Openness(where=where, asks_for_password=asks, dangerous=dangerous)


async def _lets_strangers_in(settings: JobSettings, until: float) -> bool:
    """Return whether it takes commands from somebody without a password.

    Args:
        settings: Where it is.
        until: When to give up, by the clock of the event loop.

    Raises:
        RedisError: if it doesn't answer.
        TimeoutError: if it doesn't answer in time.
    """
    parts = urlsplit(settings.redis)
    if parts.scheme == "unix" and not _is_reachable_by_others(Path(unquote(parts.path))):
        return False
    query = parse_qs(parts.query)
    kept = "&".join(f"db={db}" for db in query.get("db", ()))
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=kept).geturl()
    if parts.scheme == "unix":
        bare = f"unix://{parts.path}?{kept}"
    options = account_of(settings)
    options.pop("username", None)
    options.pop("password", None)
    stranger = redis_client(bare, **options)
    try:
        async with asyncio.timeout_at(until):
            await cast("Call", stranger.execute_command)("PING")
    except RedisError as error:
        if refusal_of(error) is None:
            raise
        return False
    finally:
        await stranger.aclose()
    return True


async def _dangerous(url: str, account: dict[str, Any], until: float) -> tuple[str, ...]:
    """Return what the job's user may run of what it should not.

    Args:
        url: Where it is.
        account: The job's user.
        until: When to give up, by the clock of the event loop.

    Raises:
        RedisError: if Redis no longer gives it access.
        TimeoutError: if it doesn't answer in time.
    """
    client = redis_client(url, **account)
    allowed = []
    try:
        for name, words in _PROBES.items():
            try:
                async with asyncio.timeout_at(until):
                    await cast("Call", client.execute_command)(*words)
            except ResponseError as error:
                if _is_refusal(error):
                    continue
            allowed.append(name)
    finally:
        await client.aclose()
    return tuple(allowed)


def _is_refusal(error: ResponseError) -> bool:
    """Tell whether the command itself was refused, not what was asked of it."""
    said = str(error).lower()
    refusals = ("unknown command", "not allowed", "disabled", "no permissions", "noperm")
    return isinstance(error, NoPermissionError) or any(each in said for each in refusals)


def _is_reachable_by_others(socket: Path) -> bool:
    """Tell whether another user may connect to a Unix socket."""
    try:
        if not socket.stat().st_mode & 0o002:
            return False
        return all(folder.stat().st_mode & 0o001 for folder in socket.absolute().parents)
    except OSError:
        return False
