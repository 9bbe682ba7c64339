"""Where each worker was at the ends of its latest changes, as bytes that it has sent with them.

A process that is started in a worker's place goes on from there. In sync it begins with the
first step that some pserver lacks: at most as many steps back as aren't durable everywhere.

One task owns a book.
"""

from typing import NamedTuple

from paramfleet_shared.values.ids import Rank, Step

__all__ = ["KEPT_STATES", "OLD_VERSIONS", "Progress", "WorkerStates"]

OLD_VERSIONS = 2
"""Steps that may be on their way to the disk: so many older versions of sync's values are kept,
and a worker pushes no step before the one that is so many before it is durable everywhere."""

KEPT_STATES = OLD_VERSIONS + 1
"""Of each worker."""


class Progress(NamedTuple):
    """Where a worker is before a step."""

    step: Step
    state: bytes


class WorkerStates:
    """The latest states of each worker, as they came."""

    def __init__(self) -> None:
        self._kept: dict[Rank, list[Progress]] = {}

    def note(self, rank: Rank, step: Step, state: bytes) -> None:
        """Keep where a worker is before ``step``; what is kept of that step stays.

        What came first goes first, whatever its step: a step that is far too high keeps no
        later one out.
        """
        kept = self._kept.setdefault(rank, [])
        if any(each.step == step for each in kept):
            return
        kept.append(Progress(step, state))
        del kept[:-KEPT_STATES]

    def before(self, rank: Rank, step: Step | None) -> Progress | None:
        """Return where a worker was before a step; None for ``step`` is where it was last."""
        kept = self._kept.get(rank, [])
        if step is None:
            return max(kept, key=lambda each: each.step, default=None)
        return next((each for each in kept if each.step == step), None)

    def all(self) -> list[tuple[Rank, Progress]]:
        """Return all that is kept, of each worker as it came."""
        return [(rank, each) for rank in sorted(self._kept) for each in self._kept[rank]]
