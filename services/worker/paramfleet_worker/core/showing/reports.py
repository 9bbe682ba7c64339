"""When a job's progress is told, in a line that is drawn anew or in lines that stay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet_worker.core.showing.progress import Pace, Standing, duration, standing_of

__all__ = ["Course", "Told"]

LINE_EVERY_S = 10.0
"""Seconds between two lines where none is drawn anew, and in the launcher's log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What to show now."""

    parts: tuple[str, ...]
    """Of the line that is drawn anew."""
    share: float | None
    """How long its bar is."""
    line: str
    """The line that stays; empty if none is due."""


class Course:
    """The course of one job, as its launcher sees it.

    Args:
        now: When the launch began.
    """

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._pace = Pace()
        self._standing: Standing | None = None
        self._line_at = now
        self._moved: tuple[tuple[int, float | None], float] | None = None
        """Step and loss, and since when they are so."""
        self._has_said = False
        """Whether it was said that they don't change."""

    def see(self, status: Mapping[str, Any], now: float) -> Told | None:
        """Take what ``/api/v1/status`` answers.

        Returns:
            What to show; None before the first step.
        """
        before = self._standing
        standing = self._standing = standing_of(status, before)
        if standing is None:
            return None
        if before is None:
            self._line_at = now
        self._pace.add(standing.step, now)
        self._note(standing, now)
        left_s = self._pace.left_s(standing.total_steps)
        line = ""
        if now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            line = self._line(standing, left_s, now)
        return Told(
            parts=tuple(standing.parts(left_s, short=True)), share=standing.share, line=line
        )

    def _note(self, standing: Standing, now: float) -> None:
        """Note whether the job has moved since it was last seen."""
        place = standing.step, standing.loss
        if self._moved is None or self._moved[0] != place:
            self._moved, self._has_said = (place, now), False

    def _line(self, standing: Standing, left_s: float | None, now: float) -> str:
        """Return the line that is due; empty if it was said already that nothing changes."""
        still_s = 0.0 if self._moved is None else now - self._moved[1]
        if still_s < LINE_EVERY_S:
            return ", ".join(standing.parts(left_s, short=False))
        if self._has_said:
            return ""
        self._has_said = True
        where = standing.parts(None, short=False)[0]
        return f"{where}: no step for {still_s:.0f} s"

    def end(self, published: Mapping[int, Mapping[str, Any]], *, finished: bool) -> None:
        """Take what the workers of a job that has ended published last, by rank."""
        workers = [
            {
                "step": facts.get("step"),
                "total_steps": facts.get("total_steps"),
                "loss": facts.get("loss"),
                "staleness": facts.get("staleness"),
                "alive": False,
                "done": finished,
            }
            for _, facts in sorted(published.items())
        ]
        modes = [str(facts["mode"]) for facts in published.values() if facts.get("mode")]
        status = {"workers": workers, "mode": next(iter(modes), ""), "samples_per_s": 0.0}
        self._standing = standing_of(status, self._standing)

    def result(self, now: float, *, finished: bool) -> str:
        """Return what became of it.

        Args:
            now: When it ended.
            finished: Whether it has done all its steps; else the last known step is of the
                slowest worker.

        Returns:
            As ``0:25: step 500 of 500, loss 0.1198, ...``.
        """
        took = duration(now - self._began_at)
        standing = self._standing
        if standing is None:
            return took
        step, *more = standing.parts(None, short=False)
        if not finished:
            whose = " (the slowest worker)" if standing.num_workers > 1 else ""
            step = f"last reported: {step}{whose}"
        return f"{took}: {', '.join([step, *more])}"
