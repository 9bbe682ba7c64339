"""The staleness gate: which steps of async may begin."""

from tests.recovery.protocol import LEAD


class Gate:
    """Counts the steps that each member has finished without a gap."""

    def __init__(self) -> None:
        self._finished: dict[int, int] = {}
        self._ahead: dict[int, set[int]] = {}

    def copied(self) -> "Gate":
        """Return a copy."""
        image = Gate()
        image._finished = dict(self._finished)
        image._ahead = {rank: set(steps) for rank, steps in self._ahead.items()}
        return image

    def join(self, rank: int) -> None:
        """Admit a member, level with the slowest other."""
        self.leave(rank)
        self._finished[rank] = min(self._finished.values(), default=0)

    def leave(self, rank: int) -> None:
        """Forget a member."""
        self._finished.pop(rank, None)
        self._ahead.pop(rank, None)

    def finish(self, rank: int, first: int, step: int) -> None:
        """Count steps; those behind a gap count once it is closed."""
        if first > self._finished[rank]:
            self._ahead.setdefault(rank, set()).add(step)
            return
        self._finished[rank] = max(self._finished[rank], step + 1)
        ahead = self._ahead.get(rank, set())
        while self._finished[rank] in ahead:
            ahead.discard(self._finished[rank])
            self._finished[rank] += 1

    def next_step(self, rank: int) -> int:
        """Return how many steps a member has finished."""
        return self._finished.get(rank, 0)

    def admits(self, rank: int, step: int) -> bool:
        """Return whether a step may begin: nobody else is too far behind."""
        others = [steps for other, steps in self._finished.items() if other != rank]
        return step - min(others, default=step) <= LEAD
