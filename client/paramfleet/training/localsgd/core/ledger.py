"""The cost of a run's synchronizations: number, bytes, and how long training waited."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ledger"]


class Ledger:
    """Counts of one worker; the training thread alone writes.

    Args:
        num_fragments: Fragment exchanges that make one synchronisation of the model.
    """

    def __init__(self, num_fragments: int = 1) -> None:
        self._num_fragments = num_fragments
        self.steps = 0
        """Steps that the optimizer took."""
        self.exchanges = 0
        """Fragments exchanged."""
        self.bytes_sent = 0
        """What this worker sent: payload, of an algorithm that sends the least."""
        self.stall_s = 0.0
        """Seconds in which training waited for an exchange."""
        self.intervals: list[tuple[int, int]] = []
        """Each period with the step from which it held, where it changed."""
        self.watch: Callable[[], None] = lambda: None
        """Called when a step has been counted; its exchanges are counted behind it."""

    @property
    def k_steps(self) -> int:
        """The period that now holds; 0 before the first was chosen."""
        return self.intervals[-1][1] if self.intervals else 0

    @property
    def synchronisations(self) -> float:
        """Exchanges in wholes of the model."""
        return self.exchanges / self._num_fragments

    @property
    def mean_interval(self) -> float:
        """Steps to a synchronisation, on average; 0 before the first."""
        return self.steps / self.synchronisations if self.exchanges else 0.0

    def stepped(self) -> None:
        """Count a step."""
        self.steps += 1
        self.watch()

    def exchanged(self) -> None:
        """Count the exchange of a fragment."""
        self.exchanges += 1

    def sent(self, num_bytes: int) -> None:
        """Count what goes out."""
        self.bytes_sent += num_bytes

    def stalled(self, seconds: float) -> None:
        """Count a wait."""
        self.stall_s += seconds

    def chose(self, k_steps: int, *, step: int) -> None:
        """Note the period that holds from a step on."""
        if not self.intervals or self.intervals[-1][1] != k_steps:
            self.intervals.append((step, k_steps))

    def figures(self) -> dict[str, float]:
        """Return what changes from synchronization to synchronization, as points of curves."""
        return {
            "synchronisations": self.synchronisations,
            "sent_bytes": float(self.bytes_sent),
            "stall_seconds": self.stall_s,
            "k_steps": float(self.k_steps),
        }

    def as_json(self) -> dict[str, Any]:
        """Return the counts for a last line: ``k_steps`` has pairs of step and period."""
        return {
            "steps": self.steps,
            "syncs": self.synchronisations,
            "bytes": self.bytes_sent,
            "stall_s": round(self.stall_s, 3),
            "mean_k": round(self.mean_interval, 2),
            "k_steps": [list(pair) for pair in self.intervals],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, for ``load_state_dict``."""
        names = ("steps", "exchanges", "bytes_sent", "stall_s")
        return {name: getattr(self, name) for name in names} | {
            "intervals": [list(pair) for pair in self.intervals]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where ``state_dict`` was asked."""
        self.steps, self.exchanges = int(state["steps"]), int(state["exchanges"])
        self.bytes_sent, self.stall_s = int(state["bytes_sent"]), float(state["stall_s"])
        self.intervals = [(int(step), int(k_steps)) for step, k_steps in state["intervals"]]
