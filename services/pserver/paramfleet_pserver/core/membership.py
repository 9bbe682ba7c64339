"""Who takes part in which step of synchronous training.

Every worker takes part from step 0; one that runs out of data leaves, and takes
part in no step from then on. The answer for a step never depends on the order
in which leaves and pushes arrive.
"""

from paramfleet_shared.errors.served import NotAMemberError
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["StepMembers"]


class StepMembers:
    """The members of each step.

    Args:
        num_workers: Workers of the job; their ranks are ``0 .. num_workers - 1``.
    """

    def __init__(self, *, num_workers: int) -> None:
        assert num_workers >= 1, "the caller validates this"
        self._num_workers = num_workers
        self._left_at: dict[Rank, Step] = {}

    def expect(self, rank: Rank, step: Step) -> None:
        """Pass if a worker takes part in a step.

        Raises:
            NotAMemberError: if it doesn't.
        """
        if not 0 <= rank < self._num_workers or not self._takes_part(rank, step):
            raise NotAMemberError(rank=rank, step=step, num_workers=self._num_workers)

    def of(self, step: Step) -> tuple[Rank, ...]:
        """Return the members of a step in rank order."""
        ranks = map(Rank, range(self._num_workers))
        return tuple(rank for rank in ranks if self._takes_part(rank, step))

    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after; the earliest leave counts.

        Raises:
            NotAMemberError: if the rank isn't one of the job's.
        """
        if not 0 <= rank < self._num_workers:
            raise NotAMemberError(rank=rank, step=step, num_workers=self._num_workers)
        self._left_at[rank] = min(step, self._left_at.get(rank, step))

    def left(self) -> dict[Rank, Step]:
        """Return from which step on workers take no part."""
        return dict(self._left_at)

    def _takes_part(self, rank: Rank, step: Step) -> bool:
        left_at = self._left_at.get(rank)
        return left_at is None or step < left_at
