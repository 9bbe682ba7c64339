"""Gradient merge: several batches make one step, and travel once."""

__all__ = ["Merge"]


class Merge:
    """Counts the batches of a step.

    Args:
        k_steps: Batches of one step.
    """

    def __init__(self, k_steps: int) -> None:
        self.k_steps = k_steps
        self._seen = 0

    @property
    def is_last(self) -> bool:
        """Whether the batch under way is the last of its step, so that gradients travel."""
        return self._seen == self.k_steps - 1

    @property
    def is_open(self) -> bool:
        """Whether gradients of earlier batches wait for more."""
        return self._seen > 0

    def take(self) -> bool:
        """Count a batch; return whether its step is complete."""
        self._seen = (self._seen + 1) % self.k_steps
        return self._seen == 0
