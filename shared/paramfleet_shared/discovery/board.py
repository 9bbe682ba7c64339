"""Values that workers store for others, such as those that join late."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from paramfleet_shared.discovery.records import Member
from paramfleet_shared.discovery.registry import Registry

__all__ = ["Board"]

T = TypeVar("T")

_KEEP_S = 86_400.0
"""How long the newest payload is kept after it was put down."""


class Insist(Protocol):
    """Outlasts an outage of Redis."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what the call does, made again while Redis is away."""
        ...


class Board:
    """A worker's access to the payloads of its run.

    Args:
        registry: Where they are.
        member: Who puts down.
        epoch: The run.
        insist: Makes each call.
    """

    def __init__(self, registry: Registry, member: Member, epoch: int, insist: Insist) -> None:
        self._registry = registry
        self._member = member
        self._epoch = epoch
        self._insist = insist

    async def put_if_first(self, name: str, payload: bytes) -> None:
        """Put down a payload, in place of this worker's last, if no lower rank trains.

        Raises:
            NoRedisError: if Redis stays away.
            FencedError: if a newer process has taken this one's place.
        """
        if not any(rank < self._member.index for rank in await self._ranks()):
            await self.put(name, payload)

    async def put(self, name: str, payload: bytes) -> None:
        """Put down a payload, in place of this worker's last of that name.

        Raises:
            NoRedisError: if Redis stays away.
            FencedError: if a newer process has taken this one's place.
        """
        await self._insist(
            lambda: self._registry.put(
                self._member,
                epoch=self._epoch,
                use=f"board:{name}",
                payload=payload,
                keep_s=_KEEP_S,
            )
        )

    async def read_all(self, name: str) -> dict[int, bytes]:
        """Return what workers have put down under a name, by rank.

        Raises:
            NoRedisError: if Redis stays away.
        """
        return await self._insist(
            lambda: self._registry.read_payloads(epoch=self._epoch, use=f"board:{name}")
        )

    async def read(self, name: str) -> bytes | None:
        """Return what the lowest other rank that trains has put down; else a former worker's.

        Raises:
            NoRedisError: if Redis stays away.
        """
        found = await self.read_all(name)
        there = set(await self._ranks()) - {self._member.index}
        ranks = sorted(found, key=lambda rank: (rank not in there, rank))
        return found[ranks[0]] if ranks else None

    async def _ranks(self) -> list[int]:
        return await self._insist(lambda: self._registry.read_training(self._epoch))
