"""Hurts the job's Redis, which is no member; it is on this machine if it is the job's own."""

import asyncio
import socket
import struct

from paramfleet_coordinator.core.operator_actions import ActionRefusedError
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.hurts import Hurt

__all__ = ["Hurter"]

_CONNECT_S = 1.0
"""Seconds to connect to a socket of this machine."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as Linux gives them."""


class Hurter:
    """Acts on the process that answers as the registry.

    Args:
        store: The registry.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def hurt_redis(self, hurt: Hurt) -> None:
        """Kill, stop or slow the registry's process.

        Raises:
            ActionRefusedError: if it is elsewhere, another user's, or not the process that it
                calls itself.
            NoRedisError: if it doesn't answer.
        """
        if not self._store.is_on_this_machine:
            reason = (
                "Redis is on another address: a fault can only be injected into a Redis with a "
                "Unix socket"
            )
            raise ActionRefusedError(action=hurt.action, mode="", reason=reason)
        said = await self._store.command("INFO", "server")
        try:
            pid = int(said["process_id"])
            listening = await asyncio.to_thread(_listening_at, self._store.socket_path)
            if listening not in {None, pid}:
                reason = f"it reports process {pid}, but process {listening} listens"
                raise ActionRefusedError(action=hurt.action, mode="", reason=reason)
            hurting.hurt_other(hurt, pid)
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = f"no fault can be injected into its process: {error}"
            raise ActionRefusedError(action=hurt.action, mode="", reason=reason) from error


def _listening_at(path: str) -> int | None:
    """Return which process listens at a Unix socket; None where the system doesn't say.

    Raises:
        OSError: if nobody does.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(_CONNECT_S)
        asked.connect(path)
        found = asked.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[0])
