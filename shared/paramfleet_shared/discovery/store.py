"""One connection to Redis: deadlines, scripts, and errors of ours instead of redis-py's."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from paramfleet_shared.clock import Clock
from paramfleet_shared.config import JobSettings, without_password
from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError

__all__ = ["RedisStore", "outlast", "store_of"]

T = TypeVar("T")

_REMEDY = (
    "start redis-server there, set PARAMFLEET_REDIS to where one runs, or let "
    "`paramfleet launch` start one"
)


_RETRY_S = 0.1
"""Seconds between two attempts while Redis is away."""


async def outlast(call: Callable[[], Awaitable[T]], *, clock: Clock, patience_s: float) -> T:
    """Repeat a call while Redis is away.

    Args:
        call: Raises ``NoRedisError`` when Redis doesn't answer; may be repeated.
        clock: For the deadline.
        patience_s: Seconds to go on.

    Raises:
        NoRedisError: if Redis stays away that long.
    """
    started = clock.monotonic()
    while True:
        try:
            return await call()
        except NoRedisError as error:
            waited_s = clock.monotonic() - started
            if waited_s >= patience_s:
                raise NoRedisError(**{**error.facts, "waited_s": waited_s}) from error
        await clock.sleep(_RETRY_S)


def store_of(settings: JobSettings, *, clock: Clock, timeout_s: float) -> "RedisStore":
    """Return the registry that a process's settings name."""
    given = {
        "username": settings.redis_user,
        "password": settings.redis_password,
        "ssl_ca_certs": settings.redis_ca,
    }
    account = {name: value for name, value in given.items() if value}
    return RedisStore(settings.redis, clock=clock, timeout_s=timeout_s, account=account)


class RedisStore:
    """Runs commands and scripts, each under a deadline; never retries by itself.

    A connection that broke is opened again by the next call. Belongs to the event loop
    of its first call.

    Args:
        url: The ``redis`` setting.
        clock: For how long a call waited.
        timeout_s: Seconds one call may take.
        account: What redis-py takes beside the address, as ``username``.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        timeout_s: float,
        account: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._timeout_s = timeout_s
        self._scripts: dict[str, Callable[..., Awaitable[list[Any]]]] = {}
        self._redis = Redis.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            **(account or {}),
        )

    @property
    def url(self) -> str:
        """Return the address, with its password hidden."""
        return without_password(self._url)

    async def run(
        self,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
        *,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Run a script; it has an effect wholly or not at all.

        Cancellation: the effect is unknown.

        Raises:
            NoRedisError: if Redis doesn't answer in time; the effect is unknown, and every
                script may be run again.
            RedisRefusedError: if Redis asks for another password.
        """
        call = self._scripts.get(script)
        if call is None:
            compiled = self._redis.register_script(script)
            call = cast("Callable[..., Awaitable[list[Any]]]", compiled)
            self._scripts[script] = call
        return await self._answer(
            lambda: call(keys=list(keys), args=list(arguments)), timeout_s=timeout_s
        )

    async def command(self, *words: str | bytes | int) -> Any:
        """Run one command.

        Raises:
            NoRedisError: if Redis doesn't answer in time.
            RedisRefusedError: if Redis asks for another password.
        """
        execute = cast("Callable[..., Awaitable[Any]]", self._redis.execute_command)
        return await self._answer(lambda: execute(*words), timeout_s=None)

    async def close(self) -> None:
        """Close the connections; may be called again."""
        await self._redis.aclose()

    async def _answer(self, call: Callable[[], Awaitable[T]], *, timeout_s: float | None) -> T:
        started = self._clock.monotonic()
        reason = "timed out"
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                return await call()
        except (AuthenticationError, NoPermissionError) as error:
            raise RedisRefusedError(url=self.url, reason=str(error)) from error
        except (RedisError, OSError, ssl.SSLError, TimeoutError) as error:
            reason = str(error) or reason
            waited_s = self._clock.monotonic() - started
            raise NoRedisError(
                url=self.url, waited_s=waited_s, reason=reason, remedy=_REMEDY
            ) from error
