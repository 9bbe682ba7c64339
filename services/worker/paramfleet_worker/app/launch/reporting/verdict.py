"""Why a job failed, as its launcher says it: few lines, or with the end of the log."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paramfleet_worker.core.causes import Cause, as_reason
from paramfleet_worker.process.console import Console

__all__ = ["Verdict", "short_path"]

TAIL_LINES = 20
"""Of a log, where the cause is unknown or all is to be shown."""

FEW_LINES = 5
"""Of a log whose process has said a cause, but not where it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Which process ended the job, and why."""

    begin: str
    """``the job failed``, or more of that."""
    who: str
    """``worker 1``."""
    how: str
    """``exited with code 1``; in brackets what the registry says, which is the cause."""
    reason: str = ""
    """Why it exited; empty if nobody knows."""
    found: Cause
    """What its traceback says."""
    log: Path | None
    """Its log; None if it is on another machine."""
    log_dir: str
    """The folder of all logs."""
    tail: Callable[[int], list[str]]
    """Returns the last lines of its log."""

    @property
    def full(self) -> str:
        """Return all of it in one line."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.begin}: {self.who} {self.how}{why}"

    def show(self, console: Console, *, stopping: str) -> None:
        """Say the cause first, then who had it and where it was.

        Args:
            console: Where it is said.
            stopping: What is done about the others, as the end of a line.
        """
        console.leave_tracebacks()
        cause, brief = self.reason, self._brief
        if not cause and self.how.startswith("("):
            cause = as_reason(f"{self.who} {self.how}")
        if cause:
            console.fail(f"error: {cause}")
        console.fail((self.full if console.shows_all else brief) + stopping)
        if self.log is None:
            return
        if self.found.place:
            console.say(f"    {self.found.place}")
        if self.found.source:
            console.say(f"        {as_reason(self.found.source)}")
        if console.shows_all or not self.found.place:
            few = FEW_LINES if cause and not console.shows_all else TAIL_LINES
            self._show_tail(console, few)

    def last(self, console: Console) -> str:
        """Return the last line: once more who it was, and where more is to be read."""
        if console.shows_all:
            return self.full
        if self.log is None:
            logs = f"logs in {short_path(self.log_dir)} (--verbose shows them here)"
        else:
            log = short_path(str(self.log))
            logs = f"its whole log: {log} (--verbose shows all logs here)"
        return f"{self._brief}; {logs}"

    @property
    def _brief(self) -> str:
        how = "" if self.how.startswith("(") else f" {self.how}"
        return f"{self.begin}: {self.who}{how}"

    def _show_tail(self, console: Console, num_lines: int) -> None:
        console.say(f"the last lines of {self.log}:")
        lines = self.tail(num_lines) or ["(it has written none since it was started)"]
        for line in lines:
            console.say(f"    {line}")


def short_path(path: str) -> str:
    """Return a path from the working folder on, if it is below that."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
