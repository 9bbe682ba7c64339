"""Who is in the job: places, incarnations, silences.

A member renews its lease by counting heartbeats in the registry. The coordinator looks
at the counts again and again; a member whose count doesn't change falls silent, and one
that is silent for ``lease_ttl_s`` is dead. Only time in which the coordinator looked
counts as silence: when it was itself paused, or couldn't reach the registry, nobody is
judged for it.

Nothing here waits, logs or reads a clock: ``now`` is an argument, in seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from paramfleet_shared.discovery.errors import (
    FencedError,
    IndexTakenError,
    JobFullError,
    NotAMemberError,
    UnknownRoleError,
)
from paramfleet_shared.discovery.records import End, Member, MemberKey, Snapshot

__all__ = ["Membership", "Place"]

_GAP_FRACTION = 0.25
"""Part of ``lease_ttl_s`` that one interval between two looks counts as silence at most."""

_TAKEOVER_FRACTION = 0.5
"""Part of ``lease_ttl_s`` after which a silent member's place goes to its successor."""


@dataclass(kw_only=True, slots=True)
class Place:
    """One role and index, and the process that holds it."""

    member: Member
    """Its incarnation is 0 until the registry has counted it."""

    renewed_at: float
    """When its heartbeat count last changed under the coordinator's eyes."""

    beats: int = -1
    silence_s: float = 0.0
    """Seconds looked at without a heartbeat."""

    end: End = ""

    @property
    def may_die(self) -> bool:
        """Return whether the job needs this member's heartbeats."""
        return self.end == "" and self.member.incarnation > 0


class Membership:
    """The places of a job.

    Args:
        limits: How many places each role has.
        lease_ttl_s: Seconds of silence that mean death.
        lease_renew_s: Seconds between two heartbeats of a live member.
    """

    def __init__(
        self, limits: Mapping[str, int], *, lease_ttl_s: float, lease_renew_s: float
    ) -> None:
        self._limits = dict(limits)
        self._lease_ttl_s = lease_ttl_s
        self._lease_renew_s = lease_renew_s
        self._places: dict[MemberKey, Place] = {}
        self._observed_at: float | None = None

    @property
    def places(self) -> Mapping[MemberKey, Place]:
        """Return the places that were ever held."""
        return self._places

    def of_role(self, role: str) -> list[Place]:
        """Return the confirmed places of a role, by index."""
        keys = sorted(key for key in self._places if key[0] == role)
        return [self._places[key] for key in keys if self._places[key].member.incarnation]

    def missing(self, role: str) -> list[int]:
        """Return the indexes of a role that nobody has taken yet."""
        present = {place.member.index for place in self.of_role(role)}
        return [index for index in range(self._limits[role]) if index not in present]

    def join(
        self,
        newcomer: Member,
        *,
        index: int | None,
        asked_at: float,
        now: float,
        replaceable: bool,
    ) -> Member | None:
        """Give a newcomer a place, or let it ask again a little later.

        The place is reserved until ``confirm`` or ``give_up``. The same nonce always
        gets the same place, so a request may be repeated.

        Args:
            newcomer: Who asks; its index and incarnation are ignored.
            index: The index it must have; None for the lowest free one.
            asked_at: When it first asked.
            now: The time.
            replaceable: Whether it may follow on a member that fell silent.

        Returns:
            The newcomer with its index; None while it isn't known whether the holder of
            the last place lives.

        Raises:
            JobFullError: if the index is beyond the role's places, or all are held.
            IndexTakenError: if a live or finished process holds the index.
        """
        limit = self._require_role(newcomer.role, index)
        for place in self._places.values():
            if place.member.role == newcomer.role and place.member.nonce == newcomer.nonce:
                return place.member
        candidates = range(limit) if index is None else [index]
        for candidate in candidates:
            if (newcomer.role, candidate) not in self._places:
                return self._reserve(newcomer, candidate, now)
        held = [self._places[newcomer.role, candidate] for candidate in candidates]
        silent = [place for place in held if replaceable and self._fell_silent(place)]
        if silent:
            return self._reserve(newcomer, silent[0].member.index, now)
        if replaceable and any(self._may_be_dead(place, asked_at) for place in held):
            return None
        if index is None:
            raise JobFullError(role=newcomer.role, limit=limit)
        raise IndexTakenError(role=newcomer.role, index=index, holder=_holder(held[0]))

    def confirm(self, member: Member, *, now: float) -> None:
        """Note the incarnation that the registry gave a reserved place."""
        self._places[member.key] = Place(member=member, renewed_at=now)

    def give_up(self, member: Member) -> None:
        """Free a reserved place that the registry could not note."""
        place = self._places.get(member.key)
        if place is not None and not place.member.incarnation:
            del self._places[member.key]

    def observe(self, snapshot: Snapshot, *, now: float) -> None:
        """Take in what the registry holds; what it lost is remembered here."""
        counted_s = self._count_interval(now)
        for key, member in snapshot.members.items():
            place = self._places.get(key)
            if place is None or member.incarnation > place.member.incarnation:
                self._places[key] = Place(member=member, renewed_at=now)
        for key, place in self._places.items():
            seen = snapshot.members.get(key)
            beats = snapshot.beats.get(key, -1)
            if seen is None or seen.incarnation < place.member.incarnation:
                place.silence_s += counted_s
                continue
            place.end = snapshot.ends.get(key) or place.end
            if beats not in {-1, place.beats}:
                place.beats, place.silence_s, place.renewed_at = beats, 0.0, now
            else:
                place.silence_s += counted_s

    def dead(self) -> list[Place]:
        """Return the members whose lease has ended, the longest silent first."""
        dead = (p for p in self._places.values() if p.may_die and self.is_silent(p))
        return sorted(dead, key=lambda place: (place.renewed_at, place.member.key))

    def is_silent(self, place: Place) -> bool:
        """Return whether the lease of a place has ended."""
        return place.silence_s >= self._lease_ttl_s

    def require(self, role: str, index: int, *, incarnation: int) -> Place:
        """Return the place of a member that asks for something.

        Raises:
            NotAMemberError: if the registry hasn't shown it yet.
            FencedError: if a newer process has its place.
        """
        place = self._places.get((role, index))
        if place is None or place.member.incarnation < incarnation:
            raise NotAMemberError(role=role, index=index)
        if place.member.incarnation > incarnation:
            newest = place.member.incarnation
            raise FencedError(role=role, index=index, incarnation=incarnation, newest=newest)
        return place

    def participants(self) -> set[int]:
        """Return the ranks that barriers wait for: all workers but those that have ended."""
        ended = {place.member.index for place in self.of_role("worker") if place.end}
        return set(range(self._limits["worker"])) - ended

    def all_gone(self) -> bool:
        """Return whether every member has left or fallen silent."""
        places: Iterable[Place] = self._places.values()
        return all(place.end == "left" or self.is_silent(place) for place in places)

    def _require_role(self, role: str, index: int | None) -> int:
        """Return how many places a role has.

        Raises:
            UnknownRoleError: if no job has such a role.
            JobFullError: if the index is beyond its places.
        """
        limit = self._limits.get(role)
        if limit is None:
            raise UnknownRoleError(role=role)
        if index is not None and not 0 <= index < limit:
            raise JobFullError(role=role, limit=limit)
        return limit

    def _count_interval(self, now: float) -> float:
        """Return how much of the time since the last look counts as silence."""
        before, self._observed_at = self._observed_at, now
        interval_s = 0.0 if before is None else now - before
        if interval_s > self._lease_ttl_s:
            for place in self._places.values():
                place.silence_s = 0.0
            return 0.0
        return min(interval_s, self._lease_ttl_s * _GAP_FRACTION)

    def _reserve(self, newcomer: Member, index: int, now: float) -> Member:
        member = replace(newcomer, index=index, incarnation=0)
        self._places[member.key] = Place(member=member, renewed_at=now)
        return member

    def _fell_silent(self, place: Place) -> bool:
        return place.may_die and place.silence_s >= self._lease_ttl_s * _TAKEOVER_FRACTION

    def _may_be_dead(self, place: Place, asked_at: float) -> bool:
        """Return whether a holder hasn't shown a heartbeat made after the question.

        One made just before is seen up to a heartbeat's time after.
        """
        return place.end == "" and place.renewed_at <= asked_at + self._lease_renew_s


def _holder(place: Place) -> str:
    member = place.member
    state = {"": "held by", "done": "finished: it was", "left": "gone: it was"}[place.end]
    return f"{state} process {member.pid} on {member.host} (incarnation {member.incarnation})"
