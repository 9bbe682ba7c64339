"""Where a worker's time goes: to data, rows, computing, sending, or waiting for others.

At any moment exactly one phase is current, and switching to the next costs two reads of
memory and one of the clock. The training thread switches; while it waits, the
communicator's loop may switch for it. Whoever asks for the facts gets sums that include the
phase that has begun, so that a worker which is stuck in one shows as that.
"""

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["PHASES", "StepTimes"]

PHASES = ("data", "pull", "compute", "push", "barrier", "wait", "pause")
"""``data`` is everything between a step's end and the next forward: reading, and the script's
own work. ``compute`` is forward, backward and what the optimizer does here. ``barrier`` is
waiting for other workers, ``wait`` for data that isn't there yet, ``pause`` for an operator."""

IDLE = "idle"
"""Before the training and after it: counted, but not shown."""

_KEPT_STEPS = 2048
_WINDOW_S = 30.0


class StepTimes:
    """Counts one worker's phases and steps.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._phase = IDLE
        self._seconds = dict.fromkeys((IDLE, *PHASES), 0.0)
        self._num_steps = 0
        self._num_examples = 0
        self._step_began = self._since
        self._apart_s = 0.0
        self._steps: deque[tuple[float, float]] = deque(maxlen=_KEPT_STEPS)

    def switch(self, phase: str) -> str:
        """Begin a phase; return the one that ends."""
        now, before = self._now(), self._phase
        self._seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    def begin(self) -> None:
        """Count from here on: the training begins."""
        self.switch("data")
        self._step_began = self._since

    def end(self) -> None:
        """Count no more: the training is over."""
        self.switch(IDLE)

    def forward(self) -> None:
        """The model is called: if that begins a step, its data is there."""
        if self._phase == "data":
            self.switch("compute")

    def end_step(self, *, examples: int) -> None:
        """A step is done; what follows counts as the next one's data."""
        self.switch("data")
        now = self._since
        apart_s = self._seconds["pause"] + self._seconds["wait"]
        self._num_steps += 1
        self._num_examples += examples
        self._steps.append((now, now - self._step_began - (apart_s - self._apart_s)))
        self._step_began, self._apart_s = now, apart_s

    @property
    def current(self) -> tuple[str, float]:
        """The current phase, and when it began; any thread may ask."""
        return self._phase, self._since

    def seconds(self, phase: str) -> float:
        """Return the time of a phase until now."""
        seconds = self._seconds[phase]
        return seconds + self._now() - self._since if phase == self._phase else seconds

    def move(self, seconds: float, before: str, phase: str) -> None:
        """Count time of one phase as another's, once it is known which it was."""
        self._seconds[before] -= seconds
        self._seconds[phase] += seconds

    def during(self, phase: str) -> "_During":
        """Return a context that is this phase, and after it the one before."""
        return _During(self, phase)

    def facts(self) -> dict[str, Any]:
        """Return the sums until now; any thread may call it.

        ``steps`` and ``examples`` are numbers, ``seconds`` the time by phase, ``phase`` the
        current one, ``step_ms`` percentiles of the steps of the last half minute.
        """
        now, phase = self._now(), self._phase
        seconds = {name: self._seconds[name] for name in PHASES}
        if phase in seconds:
            seconds[phase] += max(0.0, now - self._since)
        recent = sorted(took for at, took in self._steps.copy() if now - at <= _WINDOW_S)
        return {
            "at": round(now, 4),
            "steps": self._num_steps,
            "examples": self._num_examples,
            "phase": phase,
            "seconds": {name: round(value, 5) for name, value in seconds.items()},
            "step_ms": {
                f"p{percent}": round(1e3 * recent[(len(recent) - 1) * percent // 100], 3)
                for percent in (50, 90, 99)
                if recent
            },
        }


class _During:
    """One phase inside another."""

    __slots__ = ("_before", "_phase", "_times")

    def __init__(self, times: StepTimes, phase: str) -> None:
        self._times = times
        self._phase = phase

    def __enter__(self) -> None:
        self._before = self._times.switch(self._phase)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Rows are looked up by a forward, watched or not: its data was there.
        looked_up = self._phase == "pull" and self._before == "data"
        self._times.switch("compute" if looked_up else self._before)
