"""Whose absence ends a job: who died, left, gave up or never came, and isn't waited for.

So does who comes back without what it had.

Nothing here waits or reads a clock.
"""

from paramfleet_coordinator.core.absent.older import KnownData
from paramfleet_coordinator.core.absent.returning import Returning
from paramfleet_coordinator.core.absent.servers import DurableServers
from paramfleet_coordinator.core.absent.words import LEFT, death
from paramfleet_coordinator.core.groups.hosting import Hosting
from paramfleet_coordinator.core.membership import Membership
from paramfleet_coordinator.core.place import Place
from paramfleet_shared.discovery.records import PROCESS, Failure, JobSizes, Snapshot, State

__all__ = ["Failing"]

_NO_COPY = (
    "; it had group {group}, and no process that lives has a copy: continue from a checkpoint "
    "(--resume). With a data folder (--data_dir) a group outlives all its processes"
)


class Failing:
    """What a job fails of.

    Args:
        members: All of the job.
        returning: Its workers that may come back.
        servers: Its durable pservers.
        hosting: The processes of its groups; None where each pserver is a process of its own.
        patience_s: From the first member's joining to the last's, and from the loss of all
            workers to the next one's joining; 0 waits without end.
    """

    def __init__(
        self,
        members: Membership,
        *,
        returning: Returning,
        servers: DurableServers,
        hosting: Hosting | None,
        patience_s: float,
    ) -> None:
        self._members = members
        self._returning = returning
        self._servers = servers
        self._hosting = hosting
        self._patience_s = patience_s
        self._data = KnownData()
        self._first_joined_at: float | None = None
        self._deserted_at: float | None = None

    def find(
        self, snapshot: Snapshot, sizes: JobSizes, state: State, *, shrinks: bool, now: float
    ) -> Failure | None:
        """Return what a job that hasn't ended fails of now.

        Args:
            snapshot: What the registry holds.
            sizes: Of the job.
            state: Of the job.
            shrinks: Whether it goes on without workers that died.
            now: The time.
        """
        dead = [place for place in self._members.dead() if not self._goes_on_without(place)]
        if dead:
            return _failure_of(dead[0], death(dead[0], now) + self._in_vain(dead[0]))
        for place in self._members.of_role("pserver"):
            if place.end and not self._goes_on_without(place):
                return _failure_of(place, LEFT + self._in_vain(place))
        if sizes.returning:
            for place in self._members.of_role("worker"):
                lost = place.end == "lost" and not place.is_given_up
                if lost and not self._returning.awaits(place):
                    return _failure_of(place, place.why + self._in_vain(place))
        return (
            (self._data.look(snapshot) if self._hosting is None else None)
            or self._find_desertion(state, shrinks=shrinks, now=now)
            or self._find_absentee(sizes, state, now)
        )

    def _goes_on_without(self, place: Place) -> bool:
        """Return whether the job waits for who goes on in the place of one that has ended."""
        if place.member.role == "worker":
            return self._returning.awaits(place)
        if self._servers.left_s(place) is not None:
            return True
        is_group = self._hosting is not None and place.member.role == "pserver"
        return is_group and self._hosting is not None and self._hosting.survives(place)

    def _in_vain(self, place: Place) -> str:
        """Return that another process of a place was waited for; empty if it wasn't."""
        if place.member.role == "worker":
            return self._returning.in_vain()
        if self._hosting is not None and not self._servers.is_kept(place):
            return _NO_COPY.format(group=place.member.index)
        return self._servers.in_vain(place)

    def _find_desertion(self, state: State, *, shrinks: bool, now: float) -> Failure | None:
        """Return who was lost last, if all workers are and no other came in time."""
        workers = self._members.of_role("worker")
        if state != "training" or any(place.end != "lost" for place in workers):
            self._deserted_at = None
            return None
        if self._deserted_at is None:
            self._deserted_at = now
        if workers and shrinks:
            last = max(workers, key=lambda place: place.renewed_at)
            return _failure_of(last, "all workers are lost; this one: " + last.why)
        patience_s = self._patience_s
        if not workers or not patience_s or now - self._deserted_at < patience_s:
            return None
        last = max(workers, key=lambda place: place.renewed_at)
        every = f"all workers are lost, and none came in {patience_s:.0f} s; this one: "
        return _failure_of(last, every + last.why)

    def _find_absentee(self, sizes: JobSizes, state: State, now: float) -> Failure | None:
        """Return who hasn't joined in time."""
        if state != "waiting" or not self._members.places:
            return None
        if self._first_joined_at is None:
            self._first_joined_at = now
        patience_s = self._patience_s
        if not patience_s or now - self._first_joined_at < patience_s:
            return None
        roles = ("pserver", "worker")
        num_processes = len(self._members.of_role(PROCESS))
        if self._hosting is not None and num_processes < sizes.server_processes:
            roles = (PROCESS, "worker")
        for role in roles:
            for index in self._members.missing(role):
                reason = f"hasn't joined {patience_s:.0f} s after the first member"
                return Failure(role=role, index=index, reason=reason)
        return None


def _failure_of(place: Place, reason: str) -> Failure:
    return Failure(role=place.member.role, index=place.member.index, reason=reason)
