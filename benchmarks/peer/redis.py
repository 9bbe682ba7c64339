"""Redis as a table: a key a row. The client steps the rows, because Redis can't.

A step reads with MGET what it pulls, and writes with MSET the rows it has read less the
gradients. It does no more than that, so a second step in flight, or a second client, would
undo the first: there is always one.
"""

import sys
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from peer.work import CALL_TIMEOUT_S, LR, Client, Pulled, Work

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisClient", "connect"]


class RedisClient:
    """Rows as strings of bytes, under the bytes of their ids.

    Args:
        work: For the width of rows.
        redis: Connected.
    """

    def __init__(self, work: Work, redis: "Redis") -> None:
        self._row_bytes = 4 * work.dim
        self._absent = bytes(self._row_bytes)
        self._redis = redis

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of ids; those that are absent are zeros."""
        values = cast("list[bytes | None]", self._redis.mget(_pieces(ids, ids.itemsize)))
        found = b"".join([self._absent if value is None else value for value in values])
        return Pulled(ids, np.frombuffer(found, np.float32).reshape(len(ids), -1))

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Write the rows that were pulled, stepped."""
        rows = pulled.rows - grads * np.float32(LR)
        keys = _pieces(pulled.ids, pulled.ids.itemsize)
        self._redis.mset(dict(zip(keys, _pieces(rows, self._row_bytes), strict=True)))

    def exact(self) -> Client:
        """Return itself: floats travel as they are."""
        return self

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


def _pieces(array: NDArray[np.generic], size: int) -> list[bytes]:
    """Return an array's bytes in pieces of ``size``."""
    whole = array.tobytes()
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def connect(work: Work, url: str, *, hiredis: bool) -> Client:
    """Return a client of a server.

    Args:
        work: What a step is.
        url: The server's.
        hiredis: Whether redis-py may use its C parser, which ``pip install redis`` alone
            doesn't bring.
    """
    if not hiredis:
        sys.modules["hiredis"] = None  # type: ignore[assignment]  # so that its import fails
    from redis import Redis  # noqa: PLC0415 (it looks for hiredis when it is imported)

    return RedisClient(work, Redis.from_url(url, socket_timeout=CALL_TIMEOUT_S))
