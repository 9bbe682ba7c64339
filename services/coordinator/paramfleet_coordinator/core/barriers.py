"""Barriers: who stands where, and who may go.

A barrier has a name, and each use of it a generation, counted by every worker for
itself from 1. Arrivals are sets, so that a repeated request counts once. A barrier lets
go when every participant stands at the same generation. A worker that stands at a later
generation proves that the earlier one was released, even if its record is lost.

Nothing here waits or knows the time.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from paramfleet_shared.discovery.errors import TooManyBarriersError
from paramfleet_shared.discovery.records import Release

__all__ = ["MAX_OPEN", "Barriers", "Whereabouts"]

MAX_OPEN = 1024
"""Most uses of barriers at which workers wait at a time."""


class Barriers:
    """The open barriers of a job, and the latest release of each name.

    Args:
        released: What a former coordinator has released, by name.
        arrivals: Who stood where under a former coordinator.
    """

    def __init__(
        self,
        released: Mapping[str, Release] | None = None,
        arrivals: Mapping[tuple[str, int], AbstractSet[int]] | None = None,
    ) -> None:
        self._released = dict(released or {})
        self._arrived = {use: set(ranks) for use, ranks in (arrivals or {}).items()}

    def learn(self, passed: Mapping[str, int]) -> None:
        """Take what a worker has passed, should its release be forgotten."""
        for name, generation in passed.items():
            if not self.is_released(name, generation):
                self._released[name] = Release(name=name, generation=generation, ranks=())
        for use in [use for use in self._arrived if self.is_released(*use)]:
            del self._arrived[use]

    def missing(self, released: Mapping[str, Release]) -> list[Release]:
        """Return the releases that the registry lacks, as after a restart of Redis."""
        return [
            release
            for name, release in self._released.items()
            if name not in released or released[name].generation < release.generation
        ]

    def arrive(self, name: str, generation: int, rank: int) -> None:
        """Note that a worker stands at a barrier; may be repeated."""
        if not self.is_released(name, generation):
            self._arrived.setdefault((name, generation), set()).add(rank)

    def require_free_barrier(self, name: str, generation: int) -> None:
        """Pass if a use of a barrier is open, or one more may be.

        Raises:
            TooManyBarriersError: if too many are open.
        """
        if (name, generation) not in self._arrived and len(self._arrived) >= MAX_OPEN:
            raise TooManyBarriersError(name=name, limit=MAX_OPEN)

    def withdraw(self, rank: int) -> None:
        """Forget that a worker stands anywhere: it takes part no more."""
        for ranks in self._arrived.values():
            ranks.discard(rank)

    def settle(self, participants: AbstractSet[int]) -> list[Release]:
        """Let go whoever may go now.

        Args:
            participants: The ranks that take part.

        Returns:
            The new releases, oldest first.
        """
        latest: dict[str, int] = {}
        for name, generation in self._arrived:
            latest[name] = max(generation, latest.get(name, 0))
        new = []
        for name, generation in sorted(self._arrived, key=lambda use: (use[1], use[0])):
            ranks = self._arrived[name, generation]
            if ranks and participants <= ranks:
                new.append(self._let_go(name, generation, ranks))
            elif generation < latest[name]:  # it was released; its members are no longer known
                new.append(self._let_go(name, generation, set()))
        return new

    def is_released(self, name: str, generation: int) -> bool:
        """Return whether this use of a barrier was released."""
        latest = self._released.get(name)
        return latest is not None and latest.generation >= generation

    def passed(self) -> dict[str, int]:
        """Return how often each barrier was released, by name."""
        return {name: release.generation for name, release in self._released.items()}

    def passed_with(self, rank: int) -> dict[str, int]:
        """Return how often each barrier was released that a worker took part in, by name."""
        return {
            name: release.generation
            for name, release in self._released.items()
            if rank in release.ranks or not release.ranks
        }

    def come_to(self, rank: int) -> dict[str, int]:
        """Return how often a worker has come to each barrier, whether or not others have."""
        found = self.passed_with(rank)
        for (name, generation), ranks in self._arrived.items():
            if rank in ranks:
                found[name] = max(generation, found.get(name, 0))
        return found

    def took_part(self, name: str, generation: int) -> tuple[int, ...]:
        """Return the ranks of a release; empty if that is forgotten."""
        latest = self._released.get(name)
        known = latest is not None and latest.generation == generation
        return latest.ranks if latest is not None and known else ()

    def arrived(self, name: str, generation: int) -> list[int]:
        """Return the ranks that stand at an open barrier, in order."""
        return sorted(self._arrived.get((name, generation), ()))

    def open(self) -> Iterable[tuple[str, int]]:
        """Return name and generation of the open barriers, in order."""
        return sorted(self._arrived)

    def _let_go(self, name: str, generation: int, ranks: AbstractSet[int]) -> Release:
        del self._arrived[name, generation]
        release = Release(name=name, generation=generation, ranks=tuple(sorted(ranks)))
        if not self.is_released(name, generation):
            self._released[name] = release
        return release


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Stand:
    """One worker's training thread at one use of a barrier."""

    name: str
    generation: int
    at: str
    watches: bool


class Whereabouts:
    """At which barriers the workers' training threads wait now.

    A training thread does one thing at a time. So where two of them wait at different barriers,
    each without having come to that of the other, neither goes on.

    Args:
        barriers: Who has come where, whichever thread has.
    """

    def __init__(self, barriers: Barriers) -> None:
        self._barriers = barriers
        self._stands: dict[int, _Stand] = {}

    def enter(self, rank: int, use: tuple[str, int], at: str, *, watches: bool) -> object:
        """Note where a worker waits; returns what ``leave`` takes.

        Args:
            rank: The worker's.
            use: Name and generation of the barrier.
            at: What the worker's script called.
            watches: Whether the worker is to know if others wait elsewhere.
        """
        name, generation = use
        stand = _Stand(name=name, generation=generation, at=at, watches=watches)
        self._stands[rank] = stand
        return stand

    def leave(self, rank: int, stand: object) -> None:
        """Forget where a worker waits, unless it has come to another place since."""
        if self._stands.get(rank) is stand:
            del self._stands[rank]

    def elsewhere(self, rank: int, among: Collection[int]) -> dict[int, str]:
        """Return what others called who can't come to where this worker waits, by rank.

        Args:
            rank: The worker that waits.
            among: The ranks that it waits for.
        """
        own = self._stands.get(rank)
        if own is None:
            return {}
        stands = {
            other: self._stands[other] for other in sorted(among) if other in self._stands
        }
        return {
            other: stand.at
            for other, stand in stands.items()
            if self._excludes(own, stand, other) and self._excludes(stand, own, rank)
        }

    def is_watched(self, rank: int) -> bool:
        """Return whether somebody watches who waits elsewhere than this worker."""
        watching = {other for other, stand in self._stands.items() if stand.watches}
        return bool(self.elsewhere(rank, watching - {rank}))

    def _excludes(self, one: _Stand, other: _Stand, rank: int) -> bool:
        """Return whether worker ``rank``, which waits at ``other``, hasn't come to ``one``."""
        use = one.name, one.generation
        has_come = self._barriers.is_released(*use) or rank in self._barriers.arrived(*use)
        return one.name != other.name and not has_come
