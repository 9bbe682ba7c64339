"""Which copies of a group there are, and up to where all of them have it.

A copy is *eligible* if the registry names it: then it may become the owner. What was reported
durable must be in each of those, whatever happens. So a copy is counted before it is
registered, and until the registry doesn't name it any more.

The owner's disk is a copy like followers' memories. Its own memory isn't: it ends with it.

Nothing here waits or sends; time is an argument.
"""

from collections.abc import Collection
from typing import NamedTuple

__all__ = ["DISK", "Copies", "Proposal"]

DISK = "disk"
"""Name of the owner's own disk among the copies."""


class Proposal(NamedTuple):
    """Which copies the registry is to name."""

    number: int
    """Grows within a term: the registry refuses lower ones than it has, that were late."""
    copies: frozenset[str]


class Copies:
    """The copies of one group, as its owner knows them.

    Args:
        replicated: Whether others are to follow, so that changes are durable without a disk.
        has_disk: Whether the owner's disk has the group from the beginning.
        awaits_disk: Whether it will have the group: without it nothing is durable.
        grace_s: How long nothing is durable while there is no copy. Then the group goes on
            without: it is *unprotected*.
        now: The time.
    """

    def __init__(
        self,
        *,
        replicated: bool,
        has_disk: bool,
        awaits_disk: bool = False,
        grace_s: float = 0.0,
        now: float = 0.0,
    ) -> None:
        self.replicated = replicated
        self.registered = frozenset({DISK}) if has_disk else frozenset[str]()
        """What the registry names, as far as is known."""
        self.number = 0
        """Of the proposal that was that; 0 while none was written."""
        self.has_inherited = False
        """Whether it may name copies of a former owner, which lack what is executed here."""
        self._inherits_disk = False
        """Whether a disk is among them."""
        self._grace_s = grace_s
        self._alone_since = now
        self._counted: dict[str, int] = {}
        """Followers, and up to which position each has all."""
        self._unwanted: set[str] = set()
        self._number = 0
        """Of the newest proposal."""
        self._unsettled: dict[int, frozenset[str]] = {}
        """What the registry may name, too: nobody knows yet what has become of a proposal."""
        self._has_disk = has_disk
        self._awaits_disk = awaits_disk
        self._floor = 0
        """The greatest position that may have been reported durable."""
        self._reported = 0

    @property
    def reports(self) -> bool:
        """Return whether anything is ever reported durable."""
        return self.replicated or self._has_disk or self._awaits_disk

    def inherit(self, ids: Collection[str], *, position: int, now: float) -> None:
        """Take over from another owner; the registry names its copies.

        Args:
            ids: These.
            position: Up to which all is here.
            now: The time.
        """
        # nothing of that counts before the own copies are written, or that there are none
        self.has_inherited = bool(ids) or self.reports
        self._inherits_disk = DISK in ids
        self.registered = frozenset()
        self._floor = position
        self._reported = 0
        self._alone_since = now

    def count(self, follower: str, position: int) -> None:
        """Count a follower, or take note of how far it is."""
        self._unwanted.discard(follower)
        self._counted[follower] = max(position, self._counted.get(follower, 0))

    def drop(self, follower: str) -> None:
        """Don't want a follower any more: it is counted until the registry doesn't name it."""
        if self.may_be_registered(follower):
            self._unwanted.add(follower)
        else:
            self._counted.pop(follower, None)
            self._unwanted.discard(follower)

    def add_disk(self) -> None:
        """Count the owner's disk from now on: it has the group."""
        self._has_disk = True

    def may_be_registered(self, follower: str) -> bool:
        """Return whether the registry names a follower, or may do so."""
        unsettled = self._unsettled.values()
        return follower in self.registered or any(follower in each for each in unsettled)

    def is_counted(self, follower: str) -> bool:
        """Return whether a follower is counted."""
        return follower in self._counted

    def positions(self) -> Collection[int]:
        """Return how far the followers are that are counted, and wanted."""
        return [at for each, at in self._counted.items() if each not in self._unwanted]

    def durable(self, *, position: int, disk: int, now: float) -> int:
        """Return up to which position all eligible copies have the group; it never falls.

        Args:
            position: Of the last command.
            disk: Up to where the disk has it; it doesn't count unless it was added.
            now: The time.
        """
        if self.has_inherited:
            return self._reported
        found = list(self._counted.values())
        if self._has_disk:
            found.append(disk)
        if self.is_unprotected(now):
            found.append(position)
        elif not self.registered:
            return self._reported
        reached = min(found)
        self._reported = max(self._reported, reached)
        self._floor = max(self._floor, self._reported)
        return self._reported

    def is_unprotected(self, now: float) -> bool:
        """Return whether the group goes on without a copy, having waited for one."""
        if self.registered or self.has_inherited or self._awaits_disk:
            return False
        return not self.reports or self.grace_left_s(now) <= 0

    def grace_left_s(self, now: float) -> float:
        """Return for how long a copy is still waited for."""
        return max(0.0, self._alone_since + self._grace_s - now)

    def proposal(self, *, disk: int, now: float) -> Proposal | None:
        """Return what the registry is to name instead; None if that is as it should be.

        What is returned counts as maybe written from then on, until ``written``.

        Args:
            disk: Up to where the disk has the group.
            now: The time.
        """
        wanted = {
            follower
            for follower, position in self._counted.items()
            if follower not in self._unwanted
            and (position >= self._floor or self.may_be_registered(follower))
        }
        if self._has_disk and (disk >= self._floor or DISK in self.registered):
            wanted.add(DISK)
        is_known = not self._unsettled and not self.has_inherited
        if wanted == self.registered and is_known:
            return None
        if self.has_inherited and self._keeps_inherited(wanted, now):
            return None
        if self._unsettled.get(self._number) != frozenset(wanted):
            self._number += 1
            self._unsettled[self._number] = frozenset(wanted)
        return Proposal(self._number, self._unsettled[self._number])

    def _keeps_inherited(self, wanted: Collection[str], now: float) -> bool:
        """Return whether the copies of the former owner stay named for now.

        Memory alone doesn't take the place of a disk while the own one is to come soon: all
        processes may die.
        """
        if not wanted and self._awaits_disk:
            return True
        is_less = not wanted or (
            self._inherits_disk and self._awaits_disk and DISK not in wanted
        )
        return is_less and self.grace_left_s(now) > 0

    def written(self, number: int, *, now: float) -> None:
        """Take note that the registry has a proposal: no older one is applied any more."""
        if number not in self._unsettled:
            return  # a newer one was written
        before, self.registered = self.registered, self._unsettled[number]
        self.number = number
        self.has_inherited = False
        self._unsettled = {n: ids for n, ids in self._unsettled.items() if n > number}
        for follower in list(self._unwanted):
            if not self.may_be_registered(follower):
                self._counted.pop(follower, None)
                self._unwanted.discard(follower)
        if before and not self.registered:
            self._alone_since = now
