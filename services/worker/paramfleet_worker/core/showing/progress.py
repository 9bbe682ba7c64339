"""How far a training is, from what its coordinator's status says: numbers, and their words."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Pace", "Standing", "duration", "standing_of"]

_WINDOW_S = 30.0
"""The speed is that of so long: an epoch's end or a checkpoint mustn't move the end far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a job is."""

    mode: str
    """``sync``, ``async``, ``geo``, ``gpubox`` or another; empty while it isn't known."""

    step: int
    """Of the slowest worker that isn't done; of the first one when all are."""

    total_steps: float | None
    """How many that worker will take, if its script has said it."""

    loss: float | None
    """Mean of the workers' last ones."""

    examples_per_s: float
    """Of all workers together."""

    staleness: int
    """Of the worker that leads most."""

    num_workers: int
    """That have taken a step."""

    @property
    def share(self) -> float | None:
        """Return how much is done, from 0 to 1; None if nobody has said how much there is."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None

    def parts(self, left_s: float | None, *, short: bool) -> list[str]:
        """Return this in words, the most important first.

        Args:
            left_s: Seconds until the last step; None if nobody can know.
            short: For a line of few columns: ``310/500`` instead of ``step 310 of 500``.
        """
        between = "/" if short else " of "
        of = f"{between}{self.total_steps:,}" if self.total_steps else ""
        parts = [f"{self.step:,}{of}" if short and of else f"step {self.step:,}{of}"]
        if left_s is not None:
            parts.append(f"{duration(left_s)} left")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.examples_per_s:
            parts.append(f"{self.examples_per_s:,.0f} examples/s")
        if self.mode != "sync":  # where it is always 0
            parts.append(f"staleness {self.staleness:,}")
        return [*parts, self.mode] if self.mode else parts


class Pace:
    """How fast steps come, and so when the last one will."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, step: int, now: float) -> None:
        """Note where the job is now; one that is set back, as by a restart, begins anew."""
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    def left_s(self, total_steps: float | None) -> float | None:
        """Return the seconds until the last step; None while nobody can know, and at it."""
        if total_steps is None or len(self._seen) < 2:
            return None
        (since, first), (now, last) = self._seen[0], self._seen[-1]
        if last <= first or now <= since or last >= total_steps:
            return None
        return (total_steps - last) * (now - since) / (last - first)


def standing_of(status: Mapping[str, Any], before: Standing | None = None) -> Standing | None:
    """Return where a job is; None before its first step.

    Args:
        status: What ``/api/v1/status`` answers.
        before: What this returned last: a worker that is done tells no speed any more.
    """
    known = [worker for worker in status["workers"] if worker["step"]]
    going_on = [worker for worker in known if not worker["done"]]
    training = [worker for worker in going_on if worker["alive"]]
    if not known:
        return before
    slowest = min(training or going_on or known[:1], key=lambda worker: int(worker["step"]))
    losses = [worker["loss"] for worker in training or known if worker["loss"] is not None]
    loss = sum(losses) / len(losses) if losses else None
    speed = float(status["samples_per_s"])
    if before is not None:
        loss = before.loss if loss is None else loss
        speed = speed or before.examples_per_s
    return Standing(
        mode=status["mode"] or "",
        step=int(slowest["step"]),
        total_steps=slowest.get("total_steps") or None,
        loss=loss,
        examples_per_s=speed,
        staleness=max(int(worker["staleness"] or 0) for worker in known),
        num_workers=len(known),
    )


def duration(seconds: float) -> str:
    """Return ``0:12``, ``14:03`` or ``2:00:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
