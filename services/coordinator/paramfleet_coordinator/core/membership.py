"""Who is in the job: places, incarnations, silences.

A member renews its lease by counting heartbeats in the registry. The coordinator looks
at the counts again and again; a member whose count doesn't change falls silent, and one
that is silent for ``lease_ttl_s`` is dead. Only time in which the coordinator looked
counts as silence: when it was itself paused, or couldn't reach the registry, that time
isn't counted for any member.

A launcher renews, in the same way, which of its processes it sees alive. A member that is
silent while its launcher sees its process alive is waited for, up to a grace: it may have
been stopped, or be paging, and goes on. Where the launcher is silent as well, as when a
machine is lost, the member's lease counts alone.

In an elastic job a worker isn't dead but, after more patience, lost: its place goes to the
next that comes, and ranks beyond those that the job was started for are given out.

Nothing here waits, logs or reads a clock: ``now`` is an argument, in seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paramfleet_coordinator.core.launchers import Launchers
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.errors import (
    FencedError,
    IndexTakenError,
    JobFullError,
    NotAMemberError,
    UnknownRoleError,
)
from paramfleet_shared.discovery.records import PROCESS, Member, MemberKey, Snapshot

__all__ = ["MAX_WORKERS", "Membership"]

_GAP_FRACTION = 0.25
"""Part of ``lease_ttl_s`` that one interval between two looks counts as silence at most."""

_TAKEOVER_FRACTION = 0.5
"""Part of ``lease_ttl_s`` after which a silent member's place goes to its successor."""

MAX_WORKERS = 4096
"""Ranks that an elastic job gives out at most."""


class Membership:
    """The places of a job.

    Args:
        limits: How many places each role has.
        lease_ttl_s: Seconds of silence that mean death.
        lease_renew_s: Seconds between two heartbeats of a live member.
        grace_s: By role, the seconds that a silent member is waited for while its launcher
            sees its process alive.
        elastic: Whether workers may come and go.
        returning: Whether another process may take the rank of a worker that died.
    """

    def __init__(
        self,
        limits: Mapping[str, int],
        *,
        lease_ttl_s: float,
        lease_renew_s: float,
        grace_s: Mapping[str, float] | None = None,
        elastic: bool = False,
        returning: bool = False,
    ) -> None:
        self._limits = dict(limits)
        self._elastic = elastic
        self._returning = returning
        self._lease_ttl_s = lease_ttl_s
        self._lease_renew_s = lease_renew_s
        self._grace_s = dict(grace_s or {})
        self._launchers = Launchers(lease_ttl_s=lease_ttl_s)
        self._places: dict[MemberKey, Place] = {}
        self._observed_at: float | None = None

    @property
    def places(self) -> Mapping[MemberKey, Place]:
        """Return the places that were ever held."""
        return self._places

    def resize(self, limits: Mapping[str, int]) -> None:
        """Have so many places of each role from now on."""
        self._limits = dict(limits)

    def of_role(self, role: str) -> list[Place]:
        """Return the confirmed places of a role, by index."""
        keys = sorted(key for key in self._places if key[0] == role)
        return [self._places[key] for key in keys if self._places[key].member.incarnation]

    def missing(self, role: str) -> list[int]:
        """Return the indexes of a role that somebody must take before the training starts."""
        present = {place.member.index for place in self.of_role(role) if place.end != "lost"}
        limit = self._limits[role]
        vacant = [index for index in range(limit) if index not in present]
        return vacant[: max(0, limit - len(present))]  # ranks beyond count in their stead

    @property
    def num_workers(self) -> int:
        """Return how many workers the job counts: more than any rank that was given out."""
        ranks = [place.member.index for place in self.of_role("worker")]
        return max(self._limits["worker"], 1 + max(ranks, default=0))

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
            replaceable: Whether it may replace a member that became silent.

        Returns:
            The newcomer with its index; None while it isn't known whether the holder of
            the last place is alive.

        Raises:
            JobFullError: if the index is beyond the role's places, or all are held.
            IndexTakenError: if a live or finished process holds the index.
        """
        limit = self._require_role(newcomer.role, index)
        known = self.find(newcomer)
        if known is not None:
            return known
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

    def join_returning(
        self, newcomer: Member, *, index: int | None, asked_at: float, now: float
    ) -> Member | None:
        """Give a worker a free place, or that of one that died; or let it ask again.

        Without an index it gets the lowest free one, else that of a worker that is lost, else
        that of a silent one.

        Args:
            newcomer: As in ``join``.
            index: As in ``join``.
            asked_at: As in ``join``.
            now: As in ``join``.

        Returns:
            As ``join``.

        Raises:
            JobFullError: if the index is beyond the job's workers, or all of them live.
            IndexTakenError: if a live process holds the index, or it has finished.
        """
        limit = self._require_role("worker", index)
        known = self.find(newcomer)
        if known is not None:
            return known
        candidates = list(range(limit)) if index is None else [index]
        for candidate in candidates:
            if ("worker", candidate) not in self._places:
                return self._reserve(newcomer, candidate, now)
        held = [self._places["worker", candidate] for candidate in candidates]
        lost = [place for place in held if place.end == "lost" and not place.is_given_up]
        free = lost + [place for place in held if self._fell_silent(place)]
        if free:
            return self._reserve(newcomer, free[0].member.index, now)
        if any(self._may_yet_be_lost(place, asked_at) for place in held):
            return None
        if index is None:
            raise JobFullError(role="worker", limit=limit)
        raise IndexTakenError(role="worker", index=index, holder=_holder(held[0]))

    def take_over(self, newcomer: Member, *, now: float) -> Member | None:
        """Give a newcomer the place of its index at once, whether or not its holder lives.

        For a newcomer that has proved that the former process has ended. Its place is reserved
        until ``confirm`` or ``give_up``.

        Returns:
            The newcomer; None while another newcomer is being admitted there.
        """
        known = self.find(newcomer)
        if known is not None:
            return known
        if not self._places[newcomer.key].member.incarnation:
            return None
        return self._reserve(newcomer, newcomer.index, now)

    def join_process(
        self, newcomer: Member, *, index: int | None, asked_at: float, now: float
    ) -> Member | None:
        """Give a process that hosts groups a place, at any time of the job.

        Args:
            newcomer: As in ``join``.
            index: As in ``join``; the place of any process that has ended may be taken.
            asked_at: As in ``join``.
            now: As in ``join``.

        Returns:
            As ``join``.

        Raises:
            JobFullError: if the index is beyond the places, or all are held.
            IndexTakenError: if a live process holds the index.
        """
        limit = self._require_role(newcomer.role, index)
        known = self.find(newcomer)
        if known is not None:
            return known
        candidates = range(limit) if index is None else [index]
        held = []
        for candidate in candidates:
            place = self._places.get((newcomer.role, candidate))
            if place is None or place.end or self._fell_silent(place):
                return self._reserve(newcomer, candidate, now)
            held.append(place)
        if any(self._may_be_dead(place, asked_at) for place in held):
            return None
        if index is None:
            raise JobFullError(role=newcomer.role, limit=limit)
        raise IndexTakenError(role=newcomer.role, index=index, holder=_holder(held[0]))

    def join_elastic(
        self,
        newcomer: Member,
        *,
        index: int | None,
        asked_at: float,
        now: float,
        started: bool,
    ) -> Member | None:
        """Give a worker of an elastic job a place, or let it ask again a little later.

        Without an index it gets, in this order: a place that the job was started for and
        no worker has; that of a lost worker; that of a silent one, in training only if that was
        on the same host, as a restarted container is; that of one that left; a new rank.

        Args:
            newcomer: As in ``join``.
            index: As in ``join``; the rank of any worker that doesn't live may be taken.
            asked_at: As in ``join``.
            now: As in ``join``.
            started: Whether the training has begun.

        Returns:
            As ``join``. Who held the place before must be counted as lost if it hasn't ended.

        Raises:
            JobFullError: if no rank is left, or none may be so high.
            IndexTakenError: if a live process holds the index.
        """
        known = self.find(newcomer)
        if known is not None:
            return known
        limit = self._limits["worker"]
        if index is not None:
            return self._join_at(newcomer, index, asked_at=asked_at, now=now)
        places = {p.member.index: p for p in self._places.values() if p.member.role == "worker"}
        vacant = [i for i in range(limit) if i not in places]
        lost = [i for i in sorted(places) if places[i].end == "lost"]
        if vacant or lost:
            return self._reserve(newcomer, (vacant or lost)[0], now)
        near = [p for p in places.values() if not started or p.member.host == newcomer.host]
        silent = sorted(p.member.index for p in near if self._fell_silent(p))
        if silent:
            return self._reserve(newcomer, silent[0], now)
        if any(self._may_be_dead(place, asked_at) for place in near):
            return None
        for rank in range(MAX_WORKERS):
            if rank not in places or self._is_over(places[rank]):
                return self._reserve(newcomer, rank, now)
        raise JobFullError(role="worker", limit=MAX_WORKERS)

    def holder(self, role: str, index: int) -> Place | None:
        """Return who holds a place now, or is to have it."""
        return self._places.get((role, index))

    def lose(self, place: Place, *, why: str) -> None:
        """Count a worker as lost."""
        place.end, place.why = "lost", why

    def confirm(self, member: Member, *, now: float) -> None:
        """Note the incarnation that the registry gave a reserved place."""
        self._places[member.key] = Place(member=member, renewed_at=now)

    def give_up(self, member: Member) -> None:
        """Free a reserved place that the registry could not note."""
        place = self._places.get(member.key)
        if place is None or place.member.incarnation:
            return
        del self._places[member.key]
        if place.former is not None:
            self._places[member.key] = place.former

    def observe(self, snapshot: Snapshot, *, now: float) -> None:
        """Take in what the registry holds; what it lost is remembered here."""
        counted_s = self._count_interval(now)
        for key, member in snapshot.members.items():
            place = self._places.get(key)
            is_news = place is None or member.incarnation > place.incarnation
            if is_news or (place is not None and place.is_hearsay and not place.end):
                self._places[key] = Place(member=member, renewed_at=now)
        for key, place in self._places.items():
            seen = snapshot.members.get(key)
            beats = snapshot.beats.get(key, -1)
            incarnation = place.member.incarnation  # 0: what is there is of its former holder
            if seen is None or not incarnation or seen.incarnation < incarnation:
                place.silence_s += counted_s
                continue
            end = snapshot.ends.get(key) or place.end
            place.may_return = place.may_return and end != "gone"
            place.end = "lost" if end == "gone" else end
            place.why = snapshot.last_words.get(key) or place.why
            if beats not in {-1, place.beats}:
                place.beats, place.silence_s, place.renewed_at = beats, 0.0, now
                place.lost_s = None
            else:
                place.silence_s += counted_s
        self._launchers.observe(snapshot, counted_s=counted_s)
        for place in self._places.values():
            place.vouched = self._launchers.sees(place.member)
            place.is_starting = self._launchers.sees_another(place.member)
            if place.member.role == PROCESS or place.member.process:
                place.ended = self._launchers.saw_end(place.member)
            if self._is_known_dead(place):
                self.lose(place, why="had ended before the registry (Redis) was lost")
            if self._has_no_process(place):
                place.lost_s = 0.0 if place.lost_s is None else place.lost_s + counted_s

    def learn(self, named: Mapping[int, int], *, is_all: bool, now: float) -> None:
        """Have a place for each worker that pservers wait for and the registry doesn't know.

        It may have died before it could write itself back into a registry that was empty, when
        the coordinator that knew it had died, too. If it lives, it writes itself back.

        Args:
            named: Incarnations by rank, all that pservers name now.
            is_all: Whether each pserver has said which it names. One that was started again
                and hasn't yet may know more.
            now: The time.
        """
        for key, place in list(self._places.items()):
            incarnation = named.get(place.member.index, 0)
            is_wrong = incarnation > place.member.incarnation or (is_all and not incarnation)
            if place.is_hearsay and not place.end and is_wrong:
                del self._places[key]
        for rank, incarnation in named.items():
            if ("worker", rank) not in self._places:
                member = Member(
                    role="worker",
                    index=rank,
                    incarnation=incarnation,
                    endpoint="",
                    admin="",
                    host="an unknown host",
                    pid=0,
                )
                place = Place(member=member, renewed_at=now, is_hearsay=True)
                self._places[member.key] = place

    def dead(self) -> list[Place]:
        """Return the members whose silence ends the job, the longest silent first."""
        silent = (p for p in self._places.values() if p.may_die and self.is_silent(p))
        dead = (p for p in silent if not self.is_awaited(p) and p.member.role != PROCESS)
        fatal = (p for p in dead if not self._elastic or p.member.role != "worker")
        return sorted(fatal, key=lambda place: (place.renewed_at, place.member.key))

    def _is_known_dead(self, place: Place) -> bool:
        """Return whether a worker that only pservers name has ended: its launcher says so.

        Another process may have its rank, which writes itself back within a lease.
        """
        role, index = place.member.key
        is_silent = place.is_hearsay and not place.end and self.is_silent(place)
        return is_silent and self._launchers.gave_up(role, index)

    def _has_no_process(self, place: Place) -> bool:
        """Return whether a place that somebody may come back to seems to have no process."""
        if not place.member.incarnation:
            return False
        if place.member.role == "worker":
            return self._returning and self.is_gone(place) and not place.is_given_up
        is_silent = self.is_silent(place) and not self.is_awaited(place)
        return bool(place.end) or place.ended or is_silent

    def is_gone(self, place: Place) -> bool:
        """Return whether a worker has died or given up, as far as is known."""
        is_silent = self.is_silent(place) and not self.is_awaited(place)
        return place.end == "lost" or (place.may_die and is_silent)

    def silent_workers(self, *, grace_s: float) -> list[Place]:
        """Return the workers that were silent for so long, by rank."""
        return [p for p in self.of_role("worker") if p.may_die and p.silence_s >= grace_s]

    def is_silent(self, place: Place) -> bool:
        """Return whether the lease of a place has ended."""
        return place.silence_s >= self._lease_ttl_s

    def is_awaited(self, place: Place) -> bool:
        """Return whether a member may be silent for now: its launcher sees it alive."""
        return place.vouched and self.has_patience(place)

    def has_patience(self, place: Place) -> bool:
        """Return whether a member is silent for no longer than one that lives may be."""
        return place.silence_s < self._grace_s.get(place.member.role, 0.0)

    def silent(self) -> list[Place]:
        """Return the members that are needed and silent, by role and index."""
        silent = (p for p in self._places.values() if p.may_die and self.is_silent(p))
        known = (p for p in silent if p.member.role != PROCESS)  # the plan's
        return sorted(known, key=lambda place: place.member.key)

    def require(self, role: str, index: int, *, incarnation: int) -> Place:
        """Return the place of a member that asks for something.

        Raises:
            NotAMemberError: if the registry hasn't shown it yet.
            FencedError: if a newer process has its place, or it is lost.
        """
        place = self._places.get((role, index))
        if place is None or place.member.incarnation < incarnation:
            raise NotAMemberError(role=role, index=index)
        if place.member.incarnation > incarnation or place.end == "lost":
            newest = max(place.member.incarnation, incarnation + 1)
            raise FencedError(role=role, index=index, incarnation=incarnation, newest=newest)
        return place

    def participants(self, *, started: bool) -> set[int]:
        """Return the ranks that barriers wait for: all workers but those that have ended.

        Args:
            started: Whether the training has begun, and no worker is missing.
        """
        workers = self.of_role("worker")
        awaited: set[int] = set() if started else set(self.missing("worker"))
        if self._returning:
            awaited |= self.returning()
        return awaited | {place.member.index for place in workers if not place.end}

    def returning(self) -> set[int]:
        """Return the ranks without a process that another one takes now, or may take."""
        places = [p for (role, _), p in self._places.items() if role == "worker"]
        return {
            place.member.index
            for place in places
            if (place.end == "lost" and not place.is_given_up)
            or (not place.member.incarnation and place.former is not None)
        }

    def all_gone(self) -> bool:
        """Return whether every member has left or fallen silent."""
        places: Iterable[Place] = self._places.values()
        return all(p.end in {"left", "lost"} or self.is_silent(p) for p in places)

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
            self._launchers.forgive()
            return 0.0
        return min(interval_s, self._lease_ttl_s * _GAP_FRACTION)

    def find(self, newcomer: Member) -> Member | None:
        """Return the place that a newcomer was given when it asked before."""
        for place in self._places.values():
            if place.member.role == newcomer.role and place.member.nonce == newcomer.nonce:
                return place.member
        return None

    def _join_at(
        self, newcomer: Member, index: int, *, asked_at: float, now: float
    ) -> Member | None:
        """Give a worker of an elastic job the rank it must have.

        Raises:
            JobFullError: if it may not be so high.
            IndexTakenError: if a live process holds it.
        """
        if not 0 <= index < MAX_WORKERS:
            raise JobFullError(role="worker", limit=MAX_WORKERS)
        place = self._places.get(("worker", index))
        if place is None or self._fell_silent(place) or self._is_over(place):
            return self._reserve(newcomer, index, now)
        may_be_lost = not self.is_silent(place) and self._may_yet_be_lost(place, asked_at)
        if may_be_lost or self._may_be_dead(place, asked_at):
            return None
        raise IndexTakenError(role="worker", index=index, holder=_holder(place))

    def _is_over(self, place: Place) -> bool:
        """Return whether no process has a place any more."""
        done = place.end == "done" and self.is_silent(place)
        return done or place.end in {"left", "lost"}

    def _reserve(self, newcomer: Member, index: int, now: float) -> Member:
        member = replace(newcomer, index=index, incarnation=0)
        former = self._places.get(member.key)
        self._places[member.key] = Place(member=member, renewed_at=now, former=former)
        return member

    def _fell_silent(self, place: Place) -> bool:
        short = place.silence_s >= self._lease_ttl_s * _TAKEOVER_FRACTION
        silent = short and not self.is_awaited(place)
        return place.may_die and (silent or place.ended)

    def _may_yet_be_lost(self, place: Place, asked_at: float) -> bool:
        """Return whether a holder may have died before the question.

        Its launcher says so a moment after it has started another process.
        """
        if not place.member.incarnation:
            return False
        return place.end == "" and place.renewed_at <= asked_at + self._lease_renew_s

    def _may_be_dead(self, place: Place, asked_at: float) -> bool:
        """Return whether a holder hasn't shown a heartbeat made after the question.

        One made just before is seen up to a heartbeat's time after.
        """
        unseen = place.renewed_at <= asked_at + self._lease_renew_s
        return place.end == "" and unseen and not place.vouched


def _holder(place: Place) -> str:
    member = place.member
    ended = {"done": "finished: it was", "left": "gone: it was", "lost": "lost: it was"}
    state = ended.get(place.end, "held by")
    return f"{state} process {member.pid} on {member.host} (incarnation {member.incarnation})"
