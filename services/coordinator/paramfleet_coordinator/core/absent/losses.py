"""The workers that an elastic job lost, and which of them the registry doesn't have yet.

A loss is decided here once, and counts from then on. The registry may fail to store it, or
may be empty after a restart; what it lacks is due until it is ``settled``.

Nothing here waits or knows the time.
"""

from collections.abc import Iterable
from dataclasses import replace

from paramfleet_shared.discovery.records import Lost, Snapshot

__all__ = ["Losses"]


class Losses:
    """The latest loss of each rank."""

    def __init__(self) -> None:
        self._lost: dict[int, Lost] = {}
        self._due: dict[int, Lost] = {}

    @property
    def record(self) -> tuple[Lost, ...]:
        """Return the losses by rank."""
        return tuple(self._lost[index] for index in sorted(self._lost))

    def note(self, lost: Lost) -> None:
        """Count a worker as lost."""
        self._lost[lost.index] = self._due[lost.index] = lost

    def agree(self, lost: Lost, step: int) -> Lost:
        """Note from which step on a lost worker takes no part in sync."""
        self._lost[lost.index] = agreed = replace(lost, step=step)
        return agreed

    def resume(self, recorded: Iterable[Lost]) -> None:
        """Take over what a former coordinator has decided."""
        for lost in recorded:
            known = self._lost.get(lost.index)
            if known is None or (known.incarnation, known.step is not None) < (
                lost.incarnation,
                lost.step is not None,
            ):
                self._lost[lost.index] = lost

    def look(self, snapshot: Snapshot) -> None:
        """Find what the registry lacks: it shows a lost worker as one that isn't."""
        for lost in self._lost.values():
            member = snapshot.members.get(("worker", lost.index))
            shown = member is not None and member.incarnation <= lost.incarnation
            end = snapshot.ends.get(("worker", lost.index))
            if shown and end not in {"lost", "gone"}:
                self._due[lost.index] = lost

    def due(self) -> list[Lost]:
        """Return the losses that must be written to the registry."""
        return [self._due[index] for index in sorted(self._due)]

    def settle(self, lost: Lost) -> None:
        """Note that the registry has learnt of a loss."""
        if self._due.get(lost.index) == lost:
            del self._due[lost.index]
