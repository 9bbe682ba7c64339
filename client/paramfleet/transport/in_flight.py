"""Which pushes are on their way, and whether one more may go. Sans-io.

Pushes go in the order of steps, and answers come in any. A pserver refuses what is too far
ahead of a push that hasn't come (``MAX_LATER`` of its window of identities). So the oldest push
without an answer bounds how far the others go: however long it is repeated, they are taken.
"""

from collections import deque
from dataclasses import dataclass

__all__ = ["BYTES_AT_ONCE", "PUSHES_AT_ONCE", "InFlight", "Underway"]

PUSHES_AT_ONCE = 64
"""Where nobody says otherwise: fewer calls than a connection takes."""

BYTES_AT_ONCE = 32 << 20
"""Of all pushes that are on their way at once, more than a long way holds. A larger one goes
alone."""


@dataclass(eq=False, slots=True)
class Underway:
    """One push."""

    num_steps: int
    num_bytes: int
    is_behind: bool
    """Whether others were on their way when it went."""
    is_answered: bool = False


class InFlight:
    """The pushes from the oldest one without an answer on. One task owns it."""

    def __init__(self) -> None:
        self._pushes: deque[Underway] = deque()
        self._num_bytes = 0
        self.num_steps = 0
        """Steps that are in them."""

    def __len__(self) -> int:
        return len(self._pushes)

    @property
    def num_steps_behind(self) -> int:
        """Return how many steps are in all but the oldest push."""
        return self.num_steps - (self._pushes[0].num_steps if self._pushes else 0)

    def takes(self, num_bytes: int, *, at_once: int) -> bool:
        """Return whether one more push may go.

        Args:
            num_bytes: Of its gradients.
            at_once: Pushes that may be on their way, at least 1.
        """
        fits = len(self._pushes) < at_once and self._num_bytes + num_bytes <= BYTES_AT_ONCE
        return fits or not self._pushes

    def send(self, *, num_steps: int, num_bytes: int) -> Underway:
        """Note a push that goes now."""
        push = Underway(num_steps, num_bytes, bool(self._pushes))
        self._pushes.append(push)
        self.num_steps += num_steps
        self._num_bytes += num_bytes
        return push

    def answered(self, push: Underway) -> None:
        """Note that every pserver has answered a push."""
        push.is_answered = True
        while self._pushes and self._pushes[0].is_answered:
            oldest = self._pushes.popleft()
            self.num_steps -= oldest.num_steps
            self._num_bytes -= oldest.num_bytes
