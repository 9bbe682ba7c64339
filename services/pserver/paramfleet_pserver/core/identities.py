"""Which pushes were already taken, so that a retry after a lost answer counts once.

Workers count from 1. For each (worker, table) the window holds the first sequence
not yet seen, and the later ones seen out of order. A worker's incarnation fences
its former self: a request of an older incarnation is refused, a newer one starts a
fresh window.

A worker may skip a sequence for good (a push refused for its contents). Such a
gap is given up once ``max_later`` later ones are held; what comes from before a
gap that was given up can't be judged any more, and is refused.

One task owns a window. ``check`` changes nothing, ``record`` can't fail after it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from paramfleet_shared.errors.served import FencedError, SequenceExpiredError
from paramfleet_shared.net.wire.identity import PushIdentity

__all__ = ["FIRST_SEQUENCE", "IdentityWindow", "Taken"]

FIRST_SEQUENCE = 1

MAX_LATER = 1024
"""Sequences held out of order for one (worker, table): far more than are ever in flight."""

MAX_FORMER = 4096
"""Sets of former incarnations' sequences that are kept, to compare servers by."""


class Taken(NamedTuple):
    """Which pushes of one incarnation were taken for a table."""

    worker: int
    incarnation: int
    table: str
    oldest: int
    next: int
    """All in [oldest, next) were taken."""
    later: tuple[int, ...]
    """And these."""


@dataclass(slots=True)
class _Seen:
    """Sequences of one (worker, table): all in [oldest, next), and those in later."""

    oldest: int = FIRST_SEQUENCE
    next: int = FIRST_SEQUENCE
    later: set[int] = field(default_factory=set)

    def holds(self, sequence: int) -> bool:
        return self.oldest <= sequence < self.next or sequence in self.later

    def add(self, sequence: int, max_later: int) -> None:
        if sequence == self.next and not self.later:  # mostly they come in order
            self.next += 1
            return
        if not self.holds(sequence):
            self.later.add(sequence)
        if len(self.later) > max_later:
            self.oldest = self.next = min(self.later)
        while self.next in self.later:
            self.later.remove(self.next)
            self.next += 1


class IdentityWindow:
    """The identities of pushes already taken.

    Args:
        max_later: Sequences held out of order for one (worker, table).
    """

    def __init__(self, *, max_later: int = MAX_LATER) -> None:
        assert max_later >= 1, "a window without room would give up every gap"
        self._max_later = max_later
        self._incarnation: dict[int, int] = {}
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._former: dict[tuple[int, int, str], _Seen] = {}

    def fence(self, worker: int, incarnation: int) -> None:
        """Admit a worker's incarnation; a newer one forgets its former self's pushes.

        Raises:
            FencedError: if a newer incarnation is known.
        """
        current = self.expect(worker, incarnation)
        if incarnation > current:
            for key in [key for key in self._seen if key[0] == worker]:
                self._former[worker, current, key[1]] = self._seen.pop(key)
            while len(self._former) > MAX_FORMER:
                del self._former[next(iter(self._former))]
        self._incarnation[worker] = incarnation

    def expect(self, worker: int, incarnation: int) -> int:
        """Refuse a former incarnation, and change nothing; return the one that is known.

        Raises:
            FencedError: if a newer incarnation is known.
        """
        current = self._incarnation.get(worker, incarnation)
        if incarnation < current:
            raise FencedError(worker=worker, incarnation=incarnation, current=current)
        return current

    def incarnation(self, worker: int) -> int:
        """Return the latest incarnation of a worker that is known; 0 for none."""
        return self._incarnation.get(worker, 0)

    def is_fresh(self, identity: PushIdentity) -> bool:
        """Return True if the push must be taken, False if it was taken before.

        Raises:
            FencedError: if a newer incarnation of the worker is known.
            SequenceExpiredError: if the sequence is from before a gap given up.
        """
        current = self._incarnation.get(identity.worker, identity.incarnation)
        if identity.incarnation < current:
            raise FencedError(
                worker=identity.worker, incarnation=identity.incarnation, current=current
            )
        seen = self._seen.get((identity.worker, identity.table))
        if seen is None or identity.incarnation > current:
            return True
        if identity.sequence < seen.oldest:
            raise SequenceExpiredError(
                worker=identity.worker,
                table=identity.table,
                sequence=identity.sequence,
                oldest=seen.oldest,
            )
        return not seen.holds(identity.sequence)

    def record(self, identity: PushIdentity) -> None:
        """Remember that a push was taken; recording it again changes nothing.

        Raises:
            FencedError: if a newer incarnation of the worker is known.
        """
        self.fence(identity.worker, identity.incarnation)
        key = (identity.worker, identity.table)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen()
        seen.add(identity.sequence, self._max_later)

    def incarnations(self) -> dict[int, int]:
        """Return the latest incarnation of each worker."""
        return self._incarnation.copy()

    def taken(self) -> list[Taken]:
        """Return all pushes that were taken, those of former incarnations too."""
        sets = [*self._former.items()]
        for (worker, table), seen in self._seen.items():
            sets.append(((worker, self._incarnation[worker], table), seen))
        return [
            Taken(*key, seen.oldest, seen.next, tuple(sorted(seen.later))) for key, seen in sets
        ]

    def num_held(self) -> int:
        """Return how many sequences are held out of order, over all windows."""
        return sum(len(seen.later) for seen in self._seen.values())
