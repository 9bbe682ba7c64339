"""Which changes were already taken, so that a retry after a lost answer counts once.

A worker's incarnation counts its changes from 1, over all tables and alike on all pservers.
For each worker the window holds the first sequence not yet seen, and the later ones seen out
of order. An incarnation fences the former one: a request of an older incarnation is refused,
a newer one starts a fresh window.

No gap is given up: however late a change comes, it is known whether it was taken. So one that
is too far ahead of a gap is refused. A worker that gives a change up, since it was refused,
voids its sequence: that takes it without any effect.

One task owns a window. ``check`` changes nothing, ``record`` can't fail after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paramfleet_shared.errors.served import (
    FencedError,
    SequenceTooEarlyError,
    TooManyVoidedError,
)
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity

__all__ = ["IdentityWindow", "Taken"]

MAX_LATER = 1024
"""Sequences after the first one not yet seen: far more than are ever on their way."""

MAX_VOIDED = 1024
"""Sequences that an incarnation may void: servers are compared by each of them."""

MAX_FORMER = 4096
"""Sets of former incarnations' sequences that are kept, to compare servers by."""


class Taken(NamedTuple):
    """Which changes of one incarnation were taken."""

    worker: int
    incarnation: int
    next: int
    """All before were taken."""
    later: tuple[int, ...]
    """And these."""
    voided: tuple[int, ...]
    """Those of them that had no effect, since they were voided."""


@dataclass(slots=True)
class _Seen:
    """Sequences of one incarnation: all before next, and those in later."""

    next: int = FIRST_SEQUENCE
    later: set[int] = field(default_factory=set)
    voided: set[int] = field(default_factory=set)

    def holds(self, sequence: int) -> bool:
        return sequence < self.next or sequence in self.later

    def add(self, sequence: int) -> None:
        if sequence != self.next:
            if sequence > self.next:
                self.later.add(sequence)
            return
        self.next += 1
        while self.next in self.later:
            self.later.remove(self.next)
            self.next += 1

    def taken(self, worker: int, incarnation: int) -> Taken:
        later, voided = tuple(sorted(self.later)), tuple(sorted(self.voided))
        return Taken(worker, incarnation, self.next, later, voided)


class IdentityWindow:
    """The identities of changes already taken.

    Args:
        max_later: How far ahead of the first one not yet seen a sequence may be.
        max_voided: Sequences that an incarnation may void.
    """

    def __init__(self, *, max_later: int = MAX_LATER, max_voided: int = MAX_VOIDED) -> None:
        assert max_later >= 0, "the sequence that is awaited is always taken"
        self._max_later = max_later
        self._max_voided = max_voided
        self._incarnation: dict[int, int] = {}
        self._seen: dict[int, _Seen] = {}
        self._former: dict[tuple[int, int], Taken] = {}

    def fence(self, worker: int, incarnation: int) -> None:
        """Admit a worker's incarnation; a newer one forgets its former self's changes.

        Raises:
            FencedError: if a newer incarnation is known.
        """
        current = self.expect(worker, incarnation)
        if incarnation > current:
            if worker in self._seen:
                self._former[worker, current] = self._seen.pop(worker).taken(worker, current)
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

    def next_of(self, worker: int) -> int:
        """Return the first sequence of a worker's latest incarnation not yet taken."""
        seen = self._seen.get(worker)
        return FIRST_SEQUENCE if seen is None else seen.next

    def check(self, identity: ChangeIdentity) -> bool:
        """Return True if the change must be taken, False if it was taken before.

        Raises:
            FencedError: if a newer incarnation of the worker is known.
            SequenceTooEarlyError: if it is too far ahead of the first one not yet seen.
        """
        worker, incarnation, sequence = identity
        current = self.expect(worker, incarnation)
        seen = self._seen.get(worker) if incarnation == current else None
        awaited = FIRST_SEQUENCE if seen is None else seen.next
        if sequence > awaited + self._max_later:
            raise SequenceTooEarlyError(
                worker=worker, sequence=sequence, awaited=awaited, max_later=self._max_later
            )
        return seen is None or not seen.holds(sequence)

    def check_void(self, identity: ChangeIdentity) -> bool:
        """Return as ``check`` whether a sequence can be voided still.

        Raises:
            FencedError: as ``check``.
            SequenceTooEarlyError: as ``check``.
            TooManyVoidedError: if the incarnation has voided too many.
        """
        is_fresh = self.check(identity)
        if is_fresh and identity.incarnation == self.incarnation(identity.worker):
            seen = self._seen.get(identity.worker)
            if seen is not None and len(seen.voided) >= self._max_voided:
                raise TooManyVoidedError(
                    worker=identity.worker, sequence=identity.sequence, most=self._max_voided
                )
        return is_fresh

    def record(self, identity: ChangeIdentity, *, voided: bool = False) -> None:
        """Remember that a change was taken; recording it again changes nothing.

        Args:
            identity: The change's.
            voided: Whether without any effect.

        Raises:
            FencedError: if a newer incarnation of the worker is known.
        """
        worker, incarnation, sequence = identity
        self.fence(worker, incarnation)
        seen = self._seen.get(worker)
        if seen is None:
            seen = self._seen[worker] = _Seen()
        if voided and not seen.holds(sequence):
            seen.voided.add(sequence)
        seen.add(sequence)

    def forget_effects(self) -> None:
        """Compare servers no more by what has no effect now, since all tables were replaced.

        What is taken by an incarnation that may send still is known as before.
        """
        self._former.clear()
        for seen in self._seen.values():
            seen.voided.clear()

    def incarnations(self) -> dict[int, int]:
        """Return the latest incarnation of each worker."""
        return self._incarnation.copy()

    def taken(self) -> list[Taken]:
        """Return all changes that were taken, those of former incarnations too."""
        current = self._incarnation
        seen = [each.taken(worker, current[worker]) for worker, each in self._seen.items()]
        return [*self._former.values(), *seen]

    def restore(self, incarnations: dict[int, int], taken: Sequence[Taken]) -> None:
        """Take over what another window says of itself; this one is empty.

        Args:
            incarnations: As ``incarnations()`` returns them.
            taken: As ``taken()`` returns them.
        """
        self._incarnation = dict(incarnations)
        for each in taken:
            if each.incarnation == self._incarnation.get(each.worker):
                self._seen[each.worker] = _Seen(each.next, set(each.later), set(each.voided))
            else:
                self._former[each.worker, each.incarnation] = each

    def num_held(self) -> int:
        """Return how many sequences are held out of order, over all windows."""
        return sum(len(seen.later) for seen in self._seen.values())
