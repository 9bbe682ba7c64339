"""What a member said of itself over the last minutes, as rates and shares.

Members publish sums; two readings of them make a sample. Both are bounded in time and
number, whatever a member sends.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PHASES", "Calls", "History", "Window", "number"]

PHASES = ("data", "pull", "compute", "push", "barrier", "wait", "pause")
"""Of a worker's step, as the workers name them."""

KEPT_S = 900.0
MAX_SAMPLES = 1000
WINDOW_S = 3.5
"""What is happening now: three readings, which come once a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """Calls to all pservers that wait for no other worker, within a window."""

    count: int
    seconds: float
    num_bytes: float

    @property
    def mean_s(self) -> float:
        """Return the seconds of one."""
        return self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What one worker did within the last seconds."""

    wall_s: float
    steps: int
    examples: int
    seconds: Mapping[str, float]
    """By phase."""
    phase: str
    """The current one."""
    calls: Mapping[str, Calls] = field(default_factory=dict)
    """By operation."""

    def per_step(self, phase: str) -> float:
        """Return the seconds of a phase in one step, those of an unfinished step included."""
        return self.seconds.get(phase, 0.0) / max(self.steps, 1)


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    facts: Mapping[str, Any]


class History:
    """The readings of one worker and the samples made of them.

    Time is the worker's own where rates are made, the coordinator's where samples are kept.
    """

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque(maxlen=16)
        self.samples: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)
        """At most one a second, each with ``at_s``; oldest first."""
        self._sampled_at = float("-inf")

    def take(self, facts: Mapping[str, Any], *, now: float) -> dict[str, Any] | None:
        """Take in what the worker published; return a new sample if it makes one."""
        times = facts.get("times")
        if not isinstance(times, Mapping) or not number(times.get("at")):
            return None
        at = float(times["at"])
        if self._readings and self._readings[-1].at >= at:
            if self._readings[-1].at == at:
                return None
            self._readings.clear()  # another process took the place
        self._readings.append(_Reading(at, facts))
        window = self.window()
        if window is None or now - self._sampled_at < 0.5:
            return None
        self._sampled_at = now
        sample = {"at_s": round(now, 2), **_sample(facts, window)}
        self.samples.append(sample)
        while self.samples[0]["at_s"] < now - KEPT_S:
            self.samples.popleft()
        return sample

    def window(self) -> Window | None:
        """Return what happened between the newest reading and those of seconds before."""
        if len(self._readings) < 2:
            return None
        last = self._readings[-1]
        first = next(r for r in self._readings if r.at >= last.at - WINDOW_S or r is last)
        if first is last:
            first = self._readings[-2]
        before, after = first.facts["times"], last.facts["times"]
        return Window(
            wall_s=last.at - first.at,
            steps=int(_grown(before, after, "steps")),
            examples=int(_grown(before, after, "examples")),
            seconds={
                phase: max(0.0, _grown(before["seconds"], after["seconds"], phase))
                for phase in PHASES
            },
            phase=str(after.get("phase", "")),
            calls=_calls(first.facts.get("calls", {}), last.facts.get("calls", {})),
        )


def number(value: Any) -> bool:
    """Return whether a value is a number that sums can be made of."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value - value == 0


def _grown(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float:
    return float(after.get(name, 0)) - float(before.get(name, 0))


def _calls(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Calls]:
    calls = {}
    for operation, (count, seconds, num_bytes) in after.items():
        old = before.get(operation, (0, 0.0, 0))
        calls[operation] = Calls(
            count=int(count - old[0]),
            seconds=float(seconds - old[1]),
            num_bytes=float(num_bytes - old[2]),
        )
    return calls


def _sample(facts: Mapping[str, Any], window: Window) -> dict[str, Any]:
    """Return what is drawn of a worker at one moment."""
    wall_s = max(window.wall_s, 1e-9)
    count = sum(calls.count for calls in window.calls.values())
    seconds = sum(calls.seconds for calls in window.calls.values())
    return {
        "step": facts.get("step"),
        "loss": facts.get("loss"),
        "metrics": dict(facts.get("metrics", {})),
        "steps_per_s": round(window.steps / wall_s, 2),
        "samples_per_s": round(window.examples / wall_s, 1),
        "staleness": facts.get("staleness"),
        "split": {p: round(window.seconds[p] / wall_s, 4) for p in PHASES},
        "step_ms": dict(facts["times"].get("step_ms", {})),
        "calls_per_step": round(count / max(window.steps, 1), 3),
        "call_ms": round(1e3 * seconds / count, 3) if count else None,
        "bytes_per_s": round(sum(c.num_bytes for c in window.calls.values()) / wall_s),
        "phase": window.phase,
    }
