"""Durable pservers that died or left: how long a process is waited for that has their data.

Nothing here waits or reads a clock.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paramfleet_coordinator.core.absent.words import departure
from paramfleet_coordinator.core.membership import Membership
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.errors import WrongDataFolderError
from paramfleet_shared.discovery.records import Member

if TYPE_CHECKING:
    from paramfleet_shared.discovery.placement import Placement
    from paramfleet_shared.discovery.records import MemberKey

__all__ = ["DurableServers", "require_data"]


class DurableServers:
    """The durable pservers of one job.

    Args:
        members: All of the job.
        return_s: How long a process is waited for; 0 waits for none.
    """

    def __init__(self, members: Membership, *, return_s: float) -> None:
        self._members = members
        self._return_s = return_s
        self._named: dict[MemberKey, float] = {}
        self.placement: Placement | None = None
        """Of the job once it is published: from then on pservers have parts of the training."""

    def is_kept(self, place: Place) -> bool:
        """Return whether what a pserver has of the training outlives its process."""
        member = place.member
        return member.role == "pserver" and member.durable and self.placement is not None

    def left_s(self, place: Place) -> float | None:
        """Return for how long a process is waited for; None if none is."""
        is_lost = place.lost_s is not None and place.lost_s < self._return_s
        if not is_lost or place.lost_s is None or not self.is_kept(place):
            return None
        return self._return_s - place.lost_s

    def in_vain(self, place: Place) -> str:
        """Return that one was waited for; empty if none is."""
        if not self._return_s or not self.is_kept(place):
            return ""
        return f"; no process came back with its data in {self._return_s:g} s"

    def place_for(self, newcomer: Member, index: int | None) -> Place | None:
        """Return the place of a durable pserver that a newcomer asks for, amid the job."""
        place = None if index is None else self._members.places.get(("pserver", index))
        if place is None or place.member.nonce == newcomer.nonce:
            return None
        return place if self.is_kept(place) else None

    def is_forgotten(self, newcomer: Member, index: int | None) -> bool:
        """Return whether a durable pserver had an index of which nothing but that is known.

        It died when Redis was empty, and so was its coordinator's successor's memory.
        """
        if self.placement is None or index is None or not newcomer.durable:
            return False
        return self.placement.term_of(index) > 0 and (
            ("pserver", index) not in self._members.places
        )

    def least_term(self, index: int) -> int:
        """Return the term that the placement has for a pserver; 0 if there is none."""
        return 0 if self.placement is None else self.placement.term_of(index)

    def is_named(self, key: "MemberKey") -> bool:
        """Return whether a pserver was named that isn't back."""
        return key in self._named

    def note_return(self, member: Member, *, now: float) -> tuple[str, Mapping[str, Any]]:
        """Return the event that names a process that goes on in a pserver's place."""
        since = self._named.pop(member.key, None)
        after = "" if since is None else f", after {now - since:.1f} s"
        reason = (
            f"pserver {member.index} is back{after}: process {member.pid} on {member.host} "
            f"(incarnation {member.incarnation}) has its data"
        )
        return "pserver.back", {**_facts(member), "reason": reason}

    def look(self, *, now: float) -> list[tuple[str, Mapping[str, Any]]]:
        """Return events that name who has no process and is waited for, and who is back."""
        events: list[tuple[str, Mapping[str, Any]]] = []
        for place in self._members.of_role("pserver"):
            key, index = place.member.key, place.member.index
            since, left_s = self._named.get(key), self.left_s(place)
            if since is None and left_s is not None:
                self._named[key] = place.renewed_at
                how = f"{departure(place, now)}; for {left_s:.0f} s the job waits for a process"
                reason = f"pserver {index}: {how} that has its data"
                facts = {"index": index, "waits_s": round(left_s, 1), "reason": reason}
                events.append(("pserver.lost", facts))
            elif since is not None and place.lost_s is None:
                del self._named[key]
                reason = f"pserver {index} is back after {now - since:.1f} s"
                events.append(("pserver.back", {**_facts(place.member), "reason": reason}))
        return events


def require_data(newcomer: Member, former: Member | None, *, run_id: int) -> None:
    """Refuse a newcomer that hasn't locked the data folder of a pserver in this run.

    Raises:
        WrongDataFolderError: naming what it has.
    """
    if newcomer.durable and newcomer.holds_run and newcomer.holds_run == run_id:
        return
    known = "which is gone"
    if former is not None:
        known = f"process {former.pid} on {former.host} (incarnation {former.incarnation})"
    raise WrongDataFolderError(
        index=newcomer.index if former is None else former.index,
        run=run_id,
        durable=newcomer.durable,
        holds_run=newcomer.holds_run,
        former=known,
    )


def _facts(member: Member) -> dict[str, Any]:
    return {"index": member.index, "incarnation": member.incarnation}
