"""When a GEO worker exchanges: often at first, then every ``k_steps``.

While a model is young every step moves it far, and what workers learn apart fits together
badly; later the same number of steps moves it little. So the period grows with training: it
is the number of steps taken divided by ``growth``, at least 1 and at most ``k_steps``. A worker
has never gone on alone for more than that part of its training, and the exchanges more than
with a fixed period are about ``growth * log(k_steps)`` in a whole job.
"""

__all__ = ["Periods"]


class Periods:
    """Which steps end a period.

    Args:
        k_steps: Steps of the longest period, at least 1; the steps that end one of that
            length are its multiples.
        growth: Steps after which the period is one step longer; 0 begins with the longest.
        step: Steps taken before.
    """

    def __init__(self, *, k_steps: int, growth: int, step: int = 0) -> None:
        self._k_steps = k_steps
        self._growth = growth
        self._step = step
        self._next = self._end_of_next()

    def is_due(self, step: int) -> bool:
        """Return whether a period ends with this step; to be asked after every step."""
        self._step = step
        if step < self._next:
            return False
        self._next = self._end_of_next()
        return True

    def adjust(self, k_steps: int) -> None:
        """Go on with another longest period."""
        self._k_steps = k_steps
        self._next = self._end_of_next()

    def _end_of_next(self) -> int:
        """Return the step that ends the period that begins now."""
        length = self._k_steps
        if self._growth:
            length = min(length, max(1, self._step // self._growth))
        if length < self._k_steps:
            return self._step + length
        return (self._step // self._k_steps + 1) * self._k_steps
