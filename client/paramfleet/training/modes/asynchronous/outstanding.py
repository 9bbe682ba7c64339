"""How many steps of async may wait for the pservers. Sans-io.

A gradient that waits in a queue gets stale, and is applied no sooner for it. Where a worker is
quicker than the pservers, or than its own network thread, a queue of a fixed length is always
full. So no more steps wait than are on their way anyhow: a round trip over the time of a step.
"""

__all__ = ["OutstandingSteps"]

_ANSWERS = 64
"""Round trips of which the quickest counts; then the quickest of these and of the next ones."""

_SLOWER, _QUICKER = 1 / 8, 1 / 2
"""Of a new step in the mean of their times. One that took long counts as one of twice the mean:
between two steps a script may evaluate, or wait for another process."""


class OutstandingSteps:
    """Counts round trips and steps, and says how many steps may wait.

    Args:
        most: Steps that may wait at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._step_s: float | None = None
        self._former_s = float("inf")
        self._quickest_s = float("inf")
        self._num_answers = 0

    @property
    def limit(self) -> int:
        """Return how many steps may wait beside the oldest that isn't applied; 1 at least."""
        round_trip_s = min(self._former_s, self._quickest_s)
        if self._step_s is None or round_trip_s in {0.0, float("inf")}:
            return 1
        if round_trip_s >= self._most * self._step_s:
            return self._most
        return min(1 + int(round_trip_s / self._step_s), self._most)

    def note_step(self, seconds: float) -> None:
        """Count a step: the time since the one before, without what it waited for others."""
        mean = seconds if self._step_s is None else self._step_s
        more = min(seconds - mean, mean)
        self._step_s = mean + more * (_SLOWER if more > 0 else _QUICKER)

    def note_answer(self, seconds: float) -> None:
        """Count a push: the time until all pservers answered.

        The quickest one lately is the round trip; what others took longer, they waited.
        """
        if self._num_answers == _ANSWERS:
            self._former_s, self._quickest_s = self._quickest_s, float("inf")
            self._num_answers = 0
        self._quickest_s = min(self._quickest_s, seconds)
        self._num_answers += 1
