"""Which pushes are let through while a checkpoint is written.

A hold has a name, which its owner chose. It keeps back every push but those up to a target,
which another server has applied already, and those that end an exchange of several messages
that has begun. It ends with the save that it is for, or by itself, if none begins in time.

One task owns it. Nothing here waits or knows the time.
"""

from collections.abc import Mapping

from paramfleet_shared.net.wire.identity import ChangeIdentity

__all__ = ["PushHold", "Source"]

Source = tuple[int, int]
"""Worker and incarnation."""


class PushHold:
    """At most one hold at a time; a newer one replaces it."""

    def __init__(self) -> None:
        self._name = ""
        self._since = 0.0
        self._until = 0.0
        self._saves = False
        self._targets: Mapping[Source, int] = {}
        self._open: set[Source] = set()
        self.num_holds = 0
        """How many there have been."""
        self.held_s = 0.0
        """Seconds of all that have ended."""

    @property
    def is_held(self) -> bool:
        """Return whether there is a hold."""
        return bool(self._name)

    def begin(
        self, name: str, *, now: float, until: float, targets: Mapping[Source, int]
    ) -> None:
        """Begin a hold, or say more of the one of this name.

        Args:
            name: Not empty.
            now: The time.
            until: When it ends by itself if no save has begun.
            targets: The last sequence to let through, by worker and incarnation.
        """
        if name != self._name:
            self._close(now)
            self._name, self._since, self._saves = name, now, False
            self.num_holds += 1
        self._until = until
        self._targets = targets

    def admits(self, identity: ChangeIdentity) -> bool:
        """Return whether a push may be applied now."""
        worker, incarnation, sequence = identity
        if not self._name or (worker, incarnation) in self._open:
            return True
        return sequence <= self._targets.get((worker, incarnation), 0)

    def note(self, identity: ChangeIdentity, *, continues: bool) -> None:
        """Note that a message was applied, and whether more of its exchange will follow."""
        worker, incarnation, _ = identity
        if continues:
            self._open.add((worker, incarnation))
        else:
            self._open.discard((worker, incarnation))

    def unfinished(self) -> list[Source]:
        """Return workers and incarnations whose exchange has begun and not ended."""
        return sorted(self._open)

    def begin_save(self, name: str) -> bool:
        """Keep the hold of this name until ``end``; return False if it isn't there."""
        if not name or name != self._name:
            return False
        self._saves = True
        return True

    def end(self, name: str, *, now: float) -> float:
        """End the hold of this name; return how long it was, 0 if it isn't there."""
        return self._close(now) if name and name == self._name else 0.0

    def left_s(self, *, now: float) -> float | None:
        """Return the seconds until it ends by itself; None if it won't."""
        return None if not self._name or self._saves else self._until - now

    def expire(self, *, now: float) -> bool:
        """End the hold if its time is over and no save has begun; return whether it did."""
        left_s = self.left_s(now=now)
        if left_s is None or left_s > 0:
            return False
        self._close(now)
        return True

    def _close(self, now: float) -> float:
        if not self._name:
            return 0.0
        seconds = now - self._since
        self._name, self._targets = "", {}
        self.held_s += seconds
        return seconds
