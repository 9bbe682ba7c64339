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
        left_s = self._pace.left_s(standing.total_steps)
        line = ""
        if now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            line = ", ".join(standing.parts(left_s, short=False))
        return Told(
            parts=tuple(standing.parts(left_s, short=True)), share=standing.share, line=line
        )

    def end(self, published: Mapping[int, Mapping[str, Any]]) -> None:
        """Take what the workers of a job that has ended published last, by rank."""
        workers = [
            {
                "step": facts.get("step"),
                "total_steps": facts.get("total_steps"),
                "loss": facts.get("loss"),
                "staleness": facts.get("staleness"),
                "alive": False,
                "done": True,
            }
            for _, facts in sorted(published.items())
        ]
        modes = [str(facts["mode"]) for facts in published.values() if facts.get("mode")]
        status = {"workers": workers, "mode": next(iter(modes), ""), "samples_per_s": 0.0}
        self._standing = standing_of(status, self._standing)

    def result(self, now: float) -> str:
        """Return what became of it, as ``0:25: step 500 of 500, loss 0.1198, ...``."""
        took = duration(now - self._began_at)
        standing = self._standing
        if standing is None:
            return took
        last = standing.parts(None, short=False)
        return f"{took}: {', '.join(last)}"
