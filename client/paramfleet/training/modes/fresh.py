"""Which steps are fresh: the first ones of a young model, that wait for the servers.

While a model is young every update moves it far, and a gradient that lacks the last ones costs
most. Later delay costs little, and steps wait for nobody.
"""

__all__ = ["FreshSteps"]


class FreshSteps:
    """Counts a worker's steps.

    Args:
        num: How many of the first ones are fresh; 0 for none.
    """

    def __init__(self, num: int) -> None:
        self._num = num
        self._taken = 0

    @property
    def is_next(self) -> bool:
        """Whether the step that comes, or is being taken, is a fresh one."""
        return self._taken < self._num

    def note_step(self) -> None:
        """Count a step that was taken."""
        self._taken += 1

    def go_on_from(self, steps: int) -> None:
        """Count from here on as if so many steps were taken: the model is as old as that."""
        self._taken = steps
