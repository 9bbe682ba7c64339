"""Workers that died, and of which another process may come: how long each is waited for.

That is where the job isn't elastic, and somebody starts workers again. A worker's rank, its
part of the steps and its place at barriers stay its own meanwhile.

Nothing here waits or reads a clock.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paramfleet_coordinator.core.absent.words import death
from paramfleet_coordinator.core.place import Place

if TYPE_CHECKING:
    from paramfleet_shared.discovery.records import MemberKey

__all__ = ["Returning"]


STARTING = 5.0
"""Times as long a process is waited for that its launcher sees running."""


class Returning:
    """The workers of one job that may come back.

    Args:
        return_s: How long one is waited for; 0 waits for none. As long as a launcher sees a
            process running in its place, ``STARTING`` times as long.
    """

    def __init__(self, return_s: float) -> None:
        self._return_s = return_s
        self._named: dict[MemberKey, float] = {}

    def awaits(self, place: Place) -> bool:
        """Return whether another process of a worker is waited for."""
        return (
            place.member.role == "worker"
            and place.may_return
            and place.lost_s is not None
            and place.lost_s < self._limit_s(place)
        )

    def _limit_s(self, place: Place) -> float:
        """Return for how long another process is waited for in all.

        One that runs may import and load for long before it joins.
        """
        return self._return_s * (STARTING if place.is_starting else 1.0)

    def left_s(self, place: Place) -> float | None:
        """Return for how long it is waited for; None if it isn't."""
        if not self.awaits(place) or place.lost_s is None:
            return None
        return self._limit_s(place) - place.lost_s

    def in_vain(self) -> str:
        """Return that one was waited for; empty if none is."""
        if not self._return_s:
            return ""
        return f"; no process joined in its place in {self._return_s:g} s (worker_return_s)"

    def look(self, places: list[Place], *, now: float) -> list[tuple[str, Mapping[str, Any]]]:
        """Return events that name who is waited for from now on, and who is back."""
        events: list[tuple[str, Mapping[str, Any]]] = []
        for place in places:
            key, index = place.member.key, place.member.index
            since, left_s = self._named.get(key), self.left_s(place)
            if since is None and left_s is not None:
                self._named[key] = now
                how = place.why or death(place, now)
                reason = f"worker {index}: {how}; for {left_s:.0f} s the job waits for another"
                facts = {"index": index, "waits_s": round(left_s, 1), "reason": reason}
                events.append(("worker.away", facts))
            elif since is not None and place.lost_s is None:
                del self._named[key]
                reason = f"worker {index} is back after {now - since:.1f} s"
                facts = {"index": index, "incarnation": place.member.incarnation}
                events.append(("worker.back", {**facts, "reason": reason}))
        return events
