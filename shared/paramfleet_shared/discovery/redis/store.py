"""One connection to Redis: deadlines, scripts, and errors of ours instead of redis-py's."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError
from paramfleet_shared.discovery.redis.connections import redis_client
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.config import JobSettings, without_password
from paramfleet_shared.system.clock import Clock

__all__ = [
    "RedisStore",
    "account_of",
    "advice_for",
    "derived_password",
    "outlast",
    "refusal_of",
    "store_of",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

_HAS_NONE = ("without any password configured", "no password is set")
"""What Redis says of a password where it asks for none."""

_NO_SCRIPTS = (
    "it hasn't got the job's scripts yet, and this user may not load any (a launcher of "
    "another version of paramfleet loads others)"
)

_USUAL_PORT = 6379
_HERE = {"localhost", "127.0.0.1", "::1", None, ""}
_ELSEWHERE = "or set PARAMFLEET_REDIS to the address of one that runs"

_TOLD_AFTER_S = 3.0
"""Seconds until it is said that this waits for Redis; one that starts answers sooner."""

_RETRY_S = 0.1
"""Seconds between two attempts while Redis is away."""


async def outlast(
    call: Callable[[], Awaitable[T]], *, clock: Clock, patience_s: float, tells: bool = False
) -> T:
    """Repeat a call while Redis is away.

    Args:
        call: Raises ``NoRedisError`` when Redis doesn't answer; may be repeated.
        clock: For the deadline.
        patience_s: Seconds to go on.
        tells: Whether it is logged, once, that this waits: for who has nothing else to show.

    Raises:
        NoRedisError: if Redis stays away that long.
    """
    started = clock.monotonic()
    told = not tells
    while True:
        try:
            return await call()
        except NoRedisError as error:
            waited_s = clock.monotonic() - started
            if waited_s >= patience_s:
                raise NoRedisError(**{**error.facts, "waited_s": waited_s}) from error
            if not told and waited_s >= _TOLD_AFTER_S:
                told = True
                where = f"the registry (Redis) at {error.url}"
                log.warning("waiting up to %.0f s for %s", patience_s, where)
        await clock.sleep(_RETRY_S)


def store_of(settings: JobSettings, *, clock: Clock, timeout_s: float) -> "RedisStore":
    """Return the registry that a process's settings name.

    Without a password among them, that of the job's secret is tried, which a Redis has that
    the job's launcher started.
    """
    account = account_of(settings)
    derived = derived_password(settings)
    if derived:
        account["password"] = derived
    return RedisStore(
        settings.redis,
        clock=clock,
        timeout_s=timeout_s,
        account=account,
        may_need_no_password=bool(derived),
    )


def account_of(settings: JobSettings) -> dict[str, Any]:
    """Return what redis-py takes beside the address: the settings that are given."""
    given = {
        "username": settings.redis_user,
        "password": settings.redis_password,
        "ssl_ca_certs": settings.redis_ca if settings.redis.startswith("rediss:") else "",
    }
    return {name: value for name, value in given.items() if value}


def derived_password(settings: JobSettings) -> str:
    """Return the password of a Redis that the job's launcher starts on a port.

    Returns:
        Empty where another one is given, or the file system guards the way, or the job has no
        secret.
    """
    parts = urlsplit(settings.redis)
    given = settings.redis_user or settings.redis_password or "@" in parts.netloc
    in_query = any(name in parse_qs(parts.query) for name in ("username", "password"))
    if given or in_query or parts.scheme == "unix" or not settings.secret:
        return ""
    return JobSecret(settings.secret, settings.job).redis_password


def advice_for(url: str, *, is_silent: bool = False) -> str:
    """Return what to do where Redis doesn't answer at an address.

    Args:
        url: The address.
        is_silent: Whether a call got no answer in time, and no refusal: on this machine,
            something listens there.
    """
    parts = urlsplit(url)
    if is_silent and (parts.scheme == "unix" or parts.hostname in _HERE):
        socket = f"socket {unquote(parts.path)}"
        where = socket if parts.scheme == "unix" else f"port {parts.port or _USUAL_PORT}"
        return (
            f"a process has the {where}, and is stopped, busy, or no Redis: look at it with "
            f"`ps`, continue it (`kill -CONT`) or start the job again, {_ELSEWHERE}"
        )
    if parts.scheme == "unix":
        return (
            f"nothing listens at the socket {unquote(parts.path)}: the job that it belonged to "
            f"has ended, or hasn't begun yet; start the job, {_ELSEWHERE}"
        )
    port = parts.port or _USUAL_PORT
    if parts.hostname in _HERE:
        return (
            f"start redis-server on this machine (port {port}), let `paramfleet launch` start "
            f"one, {_ELSEWHERE}"
        )
    tls = ", with TLS," if parts.scheme == "rediss" else ""
    return (
        f"see that Redis runs on {parts.hostname}, and that its port {port}{tls} can be "
        f"reached from this machine (firewall, name, network), {_ELSEWHERE}"
    )


def refusal_of(error: BaseException) -> RedisError | None:
    """Return why Redis refuses access or a command; None for any other error.

    redis-py wraps it where it comes up while a Unix socket is connected.
    """
    for each in (error, error.__cause__):
        if isinstance(each, AuthenticationError | NoPermissionError):
            return each
    return None


class RedisStore:
    """Runs commands and scripts, each under a deadline; never retries by itself.

    A connection that broke is opened again by the next call. Belongs to the event loop
    of its first call.

    Args:
        url: The ``redis`` setting.
        clock: For how long a call waited.
        timeout_s: Seconds one call may take.
        account: What redis-py takes beside the address, as ``username``.
        may_need_no_password: Whether to go on without the account's password where Redis
            says that it asks for none.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        timeout_s: float,
        account: Mapping[str, Any] | None = None,
        may_need_no_password: bool = False,
    ) -> None:
        self._url = url
        self._clock = clock
        self._timeout_s = timeout_s
        self._scripts: dict[str, Callable[..., Awaitable[list[Any]]]] = {}
        self._account = dict(account or {})
        self._may_need_no_password = may_need_no_password
        self._redis = self._client()

    @property
    def url(self) -> str:
        """Return the address, with its password hidden."""
        return without_password(self._url)

    @property
    def is_on_this_machine(self) -> bool:
        """Return whether it is reached by a Unix socket."""
        return self._url.startswith("unix:")

    @property
    def socket_path(self) -> str:
        """Return the Unix socket by which it is reached; empty without one."""
        return unquote(urlsplit(self._url).path) if self.is_on_this_machine else ""

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
        return await self._answer(
            lambda: self._script(script)(keys=list(keys), args=list(arguments)),
            timeout_s=timeout_s,
            is_script=True,
        )

    async def command(self, *words: str | bytes | int, timeout_s: float | None = None) -> Any:
        """Run one command.

        Args:
            words: The command's.
            timeout_s: None takes the store's.

        Raises:
            NoRedisError: if Redis doesn't answer in time.
            RedisRefusedError: if Redis asks for another password.
        """

        def execute() -> Awaitable[Any]:
            call = cast("Callable[..., Awaitable[Any]]", self._redis.execute_command)
            return call(*words)

        return await self._answer(execute, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connections; may be called again.

        Cancellation: they are closed. A call that is in progress closes its own when it ends.
        """
        await self._redis.aclose()

    async def _answer(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None,
        is_script: bool = False,
    ) -> T:
        started = self._clock.monotonic()
        limit_s = timeout_s or self._timeout_s
        reason, is_silent = f"no answer within {limit_s:g} s", False
        try:
            async with asyncio.timeout(limit_s):
                apart = hurting.broken("registry", started)
                if apart is not None and apart.apart_s:
                    await self._clock.sleep(apart.apart_s)  # time is over, or there is an end
                try:
                    return await call()
                except RedisError as error:
                    if not await self._goes_on_without_password(error):
                        raise
                    return await call()
        except (RedisError, OSError, ssl.SSLError, TimeoutError) as error:
            is_silent = isinstance(error, TimeoutError) and not str(error)
            reason = str(error) or reason
            cause = error
            refusal = refusal_of(error)
            if refusal is not None and is_script and "'script" in str(refusal).lower():
                reason = _NO_SCRIPTS
            elif refusal is not None:
                raise RedisRefusedError(url=self.url, reason=str(refusal)) from error
        waited_s = self._clock.monotonic() - started
        remedy = advice_for(self._url, is_silent=is_silent)
        raise NoRedisError(
            url=self.url, waited_s=waited_s, reason=reason, remedy=remedy
        ) from cause

    def _client(self) -> Redis:
        return redis_client(
            self._url, socket_timeout=None, socket_connect_timeout=None, **self._account
        )

    def _script(self, script: str) -> Callable[..., Awaitable[list[Any]]]:
        call = self._scripts.get(script)
        if call is None:
            compiled = self._redis.register_script(script)
            call = cast("Callable[..., Awaitable[list[Any]]]", compiled)
            self._scripts[script] = call
        return call

    async def _goes_on_without_password(self, error: RedisError) -> bool:
        """Leave the password out from now on, if Redis says that it has none."""
        refusal = refusal_of(error) if self._may_need_no_password else None
        if refusal is None or not any(each in str(refusal) for each in _HAS_NONE):
            return False
        if "password" in self._account:
            del self._account["password"]
            former, self._redis = self._redis, self._client()
            self._scripts.clear()
            await former.aclose()
        return True
