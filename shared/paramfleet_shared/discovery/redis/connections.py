"""Clients of Redis whose connections end with them.

redis-py leaves a connection open where its pool is closed while a call connects, or where the
close itself is cancelled before it has reached the connection.
"""

from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["redis_client"]


def redis_client(url: str, **options: Any) -> Redis:
    """Return a client that tries each call once; its ``aclose`` ends all its connections.

    ``aclose`` may be called again, and may be cancelled. A call that is in progress then, or
    begins afterwards, closes its connection when it ends.

    Args:
        url: The address.
        options: What redis-py takes beside it, as ``username``.
    """
    options = {"retry": Retry(NoBackoff(), 0), **options}
    return Redis.from_pool(_Pool.from_url(url, **options))


class _Pool(ConnectionPool):
    """Knows each connection that it made, also one that a cancelled call has lost.

    ``disconnect(nowait=True)`` waits for nothing: it can't be cancelled half-way.
    """

    @override
    def __init__(self, *args: Any, **options: Any) -> None:
        self._made: list[AbstractConnection] = []
        self._is_closed = False
        super().__init__(*args, **options)

    @override
    def make_connection(self) -> AbstractConnection:
        make = cast("Callable[[], AbstractConnection]", super().make_connection)
        connection = make()
        self._made.append(connection)
        return connection

    @override
    async def release(self, connection: AbstractConnection) -> None:
        try:
            await super().release(connection)
        finally:
            if self._is_closed:
                await connection.disconnect(nowait=True)

    @override
    async def aclose(self) -> None:
        self._is_closed = True
        try:
            await super().aclose()
        finally:
            for connection in self._made:
                await connection.disconnect(nowait=True)
