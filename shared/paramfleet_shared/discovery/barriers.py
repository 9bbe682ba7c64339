"""A worker's side of a barrier: ask the coordinator until it says go."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from paramfleet_shared.discovery.errors import (
    BarrierTimeoutError,
    ConcurrentCollectiveError,
    OtherCallError,
)
from paramfleet_shared.discovery.records import Member
from paramfleet_shared.errors import OutcomeUnknownError, UnavailableError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock

__all__ = ["BarrierCaller"]

_PARK_S = 5.0
"""Seconds the coordinator holds one request; the worker then asks again."""

_REPLY_S = 1.0
"""Seconds after the parking by which an answer must be here."""

_PARK_FRACTION = 0.5
"""Part of the time left that a request may be held, so that its answer, which names the
missing, comes in time from a busy coordinator too."""

_MAX_AT = 200
"""Characters of what a worker waits in."""

_LAST_CALL_S = 0.02
"""With less time left than this a worker doesn't ask once more."""

_RETRY_S = 0.1

_SURE_AFTER_S = 2.0
"""For so long others must be seen to wait elsewhere. A coordinator that was restarted without
Redis's data needs the members' heartbeats to know who has been where."""


class BarrierCaller:
    """Asks the coordinator; knows how often each barrier has let this worker go.

    Args:
        channel: To the coordinator.
        member: Who asks.
        job: The job's name.
        clock: For deadlines.
        passed: How often each barrier counts as having let this worker go already.
        whereabouts: Returns where the workers are, by rank, for those that wait for them.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        member: Member,
        job: str,
        clock: Clock,
        passed: Mapping[str, int],
        whereabouts: Callable[[], Awaitable[Mapping[int, str]]] | None = None,
    ) -> None:
        self._whereabouts = whereabouts
        self._channel = channel
        self._member = member
        self._job = job
        self._clock = clock
        self._passed = dict(passed)
        self._in_use: dict[str, int] = {}
        """The generation of each barrier that this worker waits at now."""
        self.released: dict[str, int] = {}
        """The newest use of each barrier that has let this process go."""
        self.shrinks = False
        """Whether sync may go on without a worker: each call says so to the coordinator."""

    def next_generation(self, name: str) -> int:
        """Return which use of the barrier the next ``pass_through`` is, from 1."""
        return self._passed.get(name, 0) + 1

    @contextmanager
    def using(self, name: str) -> Iterator[int]:
        """Keep the barrier's next use for one caller; gives its generation.

        Raises:
            ConcurrentCollectiveError: if another one uses it now: both would be the same use.
        """
        if name in self._in_use:
            raise ConcurrentCollectiveError(operation=name.removeprefix("gather/"))
        generation = self._in_use[name] = self.next_generation(name)
        try:
            yield generation
        finally:
            del self._in_use[name]

    def level_with(self, passed: Mapping[str, int]) -> None:
        """Count barriers that a former process of this worker has come to."""
        for name, number in passed.items():
            self._passed[name] = max(number, self._passed.get(name, 0))

    async def is_incomplete(self, name: str) -> bool:
        """Return whether others haven't come to the barrier at which this worker waits.

        False if it waits there no more, or the coordinator doesn't answer.

        Raises:
            JobFailedError: if the coordinator says so.
        """
        generation = self._in_use.get(name)
        if generation is None:
            return False
        try:
            reply = await self._call(name, generation, park_s=0.0, timeout_s=_REPLY_S)
        except (UnavailableError, OutcomeUnknownError):
            return False
        return not reply["released"]

    async def pass_through(
        self, name: str, *, timeout_s: float, tells: bool = False, at: str = ""
    ) -> list[int]:
        """Wait for the other workers; a coordinator that was restarted elsewhere is found.

        Args:
            name: The barrier's; the caller is ``using`` it.
            timeout_s: How long others may take.
            tells: Whether it is logged who is waited for, once it takes a while, and whether it
                ends where others wait in another call and this worker, too, ``at`` one.
            at: What the training thread waits in meanwhile; empty if it goes on.

        Returns:
            The ranks that took part.

        Raises:
            BarrierTimeoutError: if a worker didn't come in time.
            OtherCallError: if another worker's training thread waits elsewhere, for this one.
            JobFailedError: if the coordinator says so.
        """
        at, watches, apart_since = at[:_MAX_AT], bool(at) and tells, math.inf
        generation = self.next_generation(name)
        started = self._clock.monotonic()
        facts: dict[str, Any] = {"arrived": [], "missing": [], "reason": ""}
        while True:
            waited_s = self._clock.monotonic() - started
            left_s = timeout_s - waited_s
            if left_s < _LAST_CALL_S:
                places = await self._places(facts["missing"])
                reasons = [f"worker {rank} is {place}" for rank, place in places.items()]
                facts["reason"] = "; ".join([*reasons, *filter(None, [facts["reason"]])])
                raise BarrierTimeoutError(
                    name=name, generation=generation, waited_s=waited_s, **facts
                )
            park_s = min(_PARK_S, _PARK_FRACTION * left_s)
            more = {"at": at, "watches": watches} if at else {}
            try:
                reply = await self._call(
                    name,
                    generation,
                    park_s=park_s,
                    timeout_s=min(park_s + _REPLY_S, left_s),
                    more=more,
                )
            except (UnavailableError, OutcomeUnknownError) as error:
                facts["reason"] = str(error)
                await self._clock.sleep(min(_RETRY_S, left_s))
                continue
            arrived = [int(rank) for rank in reply["arrived"]]
            if reply["released"]:
                self._passed[name] = self.released[name] = generation
                return arrived
            facts = {"arrived": arrived, "missing": list(reply["missing"]), "reason": ""}
            now = self._clock.monotonic()
            if tells:
                place = at or name.removeprefix("gather/")
                tells = not await self._told(
                    place, facts["missing"], (now - started, timeout_s)
                )
            elsewhere = reply.get("elsewhere", ())
            apart_since = min(apart_since, now) if elsewhere else math.inf
            if now - apart_since >= _SURE_AFTER_S:
                raise OtherCallError(
                    rank=self._member.index, at=at, elsewhere=_named(elsewhere)
                )
            if elsewhere:
                await self._clock.sleep(_RETRY_S)

    async def _places(self, missing: Sequence[int]) -> dict[int, str]:
        """Return where workers are that are waited for, as far as is known."""
        if self._whereabouts is None or not missing:
            return {}
        found = await self._whereabouts()
        return {rank: found[rank] for rank in missing if rank in found}

    async def _told(
        self, at: str, missing: Sequence[int], seconds: tuple[float, float]
    ) -> bool:
        """Log who is waited for, if that takes long; return whether it was logged."""
        from paramfleet_shared.telemetry import waiting  # noqa: PLC0415 -- workers alone wait

        waited_s, at_most_s = seconds
        if waited_s < waiting.TOLD_AFTER_S:
            return False
        places = await self._places(missing)
        waiting.tell_waiting(at, missing, waited_s=waited_s, at_most_s=at_most_s, places=places)
        return True

    async def _call(
        self,
        name: str,
        generation: int,
        *,
        park_s: float,
        timeout_s: float,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Mapping[str, Any]:
        fields = {
            "job": self._job,
            "rank": self._member.index,
            "incarnation": self._member.incarnation,
            "name": name,
            "generation": generation,
            "park_s": park_s,
            **more,
        }
        if self.shrinks:
            fields["shrinks"] = True
        answer = await self._channel.call(
            "barrier", Message(fields=fields), timeout_s=timeout_s
        )
        return answer.fields


def _named(elsewhere: Sequence[tuple[int, str]]) -> str:
    """Return who waits where, as words."""
    return ", ".join(f"worker {rank} waits in {place}" for rank, place in elsewhere)
