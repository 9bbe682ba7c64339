"""Why a job failed, as its launcher says it: few lines, or with the end of the log."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paramfleet_worker.app.launch.reporting.reasons import KILLED, UNCAUGHT
from paramfleet_worker.core.causes import Cause, as_reason
from paramfleet_worker.process.terminal.console import Console

__all__ = ["Verdict", "short_path"]

TAIL_LINES = 20
"""Of a log, where the cause is unknown or all is to be shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Which process ended the job, and why."""

    begin: str
    """``the job failed``, or more of that."""
    who: str
    """``worker 1``."""
    how: str
    """``exited with code 1``; empty if all that is known is what the registry says."""
    reason: str = ""
    """Why it exited; empty if nobody knows."""
    found: Cause
    """Where it was, and what is known of that."""
    advice: str = ""
    """What to do, in one line; empty if nothing is known."""
    log: Path | None
    """Its log; None if it is on another machine."""
    log_dir: str
    """The folder of all logs."""
    tail: Callable[[int], list[str]]
    """Returns the last lines of its log."""

    @property
    def full(self) -> str:
        """Return who failed, how and why, in one line."""
        how = f" {self.how}" if self.how else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.begin}: {self.who}{how}{why}"

    def show(self, console: Console, *, stopping: str) -> None:
        """Say who failed, and why, where it was, what to do, and where its log is.

        Args:
            console: Where it is said.
            stopping: What is done about the others, as the end of a line; only those who ask
                for all see it.
        """
        console.leave_tracebacks()
        console.fail(f"error: {self._what}")
        console.note(f"{self.full}{stopping}")
        if self.found.place:
            console.say(f"    {self.found.place}")
        if self.found.source:
            console.say(f"        {as_reason(self.found.source)}")
        if self.advice:
            console.say(f"    {self.advice}")
        if self.log is None:
            return
        if console.shows_all or not (self.reason or self.how == KILLED):
            self._show_tail(console)
        else:
            console.say(f"    its log: {short_path(str(self.log))}")

    def last(self, console: Console) -> str:
        """Return the last line: that the job failed, and where more is to be read."""
        if console.shows_all:
            return self.full
        return f"{self.begin}; logs in {short_path(self.log_dir)} (--verbose shows them here)"

    @property
    def _what(self) -> str:
        if not self.reason:
            return f"{self.who} {self.how}"
        how = "" if self.how in {"", UNCAUGHT} else f" {self.how}"
        return f"{self.who}{how}: {self.reason}"

    def _show_tail(self, console: Console) -> None:
        console.say(f"the last lines of {self.log}:")
        lines = self.tail(TAIL_LINES) or ["(it has written none since it was started)"]
        for line in lines:
            console.say(f"    {line}")


def short_path(path: str) -> str:
    """Return a path from the working folder on, if it is below that."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
