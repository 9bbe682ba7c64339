"""Members that are silent though their launchers see them alive: each is named once.

Nothing here waits or reads a clock.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paramfleet_coordinator.core.membership import Membership

if TYPE_CHECKING:
    from paramfleet_shared.discovery.records import MemberKey

__all__ = ["Silence"]


class Silence:
    """The members of one job that were named as silent.

    Args:
        members: All of the job.
        is_named_elsewhere: Returns whether others say when a member is back.
    """

    def __init__(
        self, members: Membership, *, is_named_elsewhere: Callable[["MemberKey"], bool]
    ) -> None:
        self._members = members
        self._is_named_elsewhere = is_named_elsewhere
        self._named: dict[MemberKey, float] = {}

    def look(self, *, now: float) -> list[tuple[str, Mapping[str, Any]]]:
        """Return events that name who is silent and waited for, and who is back."""
        silent = {place.member.key: place for place in self._members.silent()}
        events = [
            _back(key, now - since)
            for key, since in list(self._named.items())
            if key not in silent and self._is_back(key)
        ]
        for key, place in silent.items():
            if key not in self._named and self._members.is_awaited(place):
                self._named[key] = place.renewed_at
                events.append(_silent(key, now - place.renewed_at))
        return events

    def _is_back(self, key: "MemberKey") -> bool:
        """Forget that a member was named; return whether it is back, and that is news."""
        del self._named[key]
        if self._is_named_elsewhere(key):  # they say when it is back
            return False
        return not self._members.is_silent(self._members.places[key])  # or else it has ended


def _back(key: "MemberKey", silent_s: float) -> tuple[str, Mapping[str, Any]]:
    reason = f"{key[0]} {key[1]} is back after {silent_s:.1f} s"
    return "member.back", {**_facts(key, silent_s), "reason": reason}


def _silent(key: "MemberKey", silent_s: float) -> tuple[str, Mapping[str, Any]]:
    reason = (
        f"{key[0]} {key[1]} has been silent for {silent_s:.1f} s; its launcher sees "
        "it alive, and it is waited for"
    )
    return "member.silent", {**_facts(key, silent_s), "reason": reason}


def _facts(key: "MemberKey", silent_s: float) -> dict[str, Any]:
    return {"role": key[0], "index": key[1], "silent_s": round(silent_s, 1)}
