"""When a launch tells that a pserver is back that had died, and what it has restored.

The pserver says it in its log: ``pserver.recovered`` with the tables that it had on its disk,
and ``pserver.started`` when it has its place in the job.
"""

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.showing.lines import event_of, fields_of

__all__ = ["Returns"]

_RECOVERED, _STARTED = "pserver.recovered", "pserver.started"


class Returns:
    """The pservers of one launch that died and were started again.

    Args:
        has_disk: Whether a pserver has its tables on a disk.
        is_planned: Whether a process hosts the groups that the coordinator plans for it.
    """

    def __init__(self, *, has_disk: bool, is_planned: bool) -> None:
        self._waits = has_disk and not is_planned
        """Whether one is back only when its tables are."""
        self._died_at: dict[ProcessName, float] = {}

    def note_death(self, name: ProcessName, now: float) -> None:
        """Note that a process has ended; of one that doesn't come back nothing is told."""
        self._died_at.setdefault(name, now)

    def hear(self, name: ProcessName, line: bytes, now: float) -> str:
        """Take a line of a pserver's log; return what to say, empty for nothing."""
        event = event_of(line)
        if event not in {_RECOVERED, _STARTED}:
            return ""
        if event == _STARTED and self._waits:
            return ""
        fields = fields_of(line)
        try:
            restored = "" if event == _STARTED else _restored(fields)
            took_s = float(fields.get("seconds", "0"))
        except ValueError:  # it isn't what a pserver writes
            return ""
        died_at = self._died_at.pop(name, None)
        back = f"is back after {now - died_at:.1f} s" if died_at is not None else ""
        if event == _STARTED:
            return f"{name.label} {back}" if back else ""
        if "group" in fields:
            which = f"group {fields['group']} in {took_s:.1f} s"
            return f"{name.label} has restored {which}: {restored}"
        return f"{name.label} {back or 'goes on'}: restored {restored}"


def _restored(fields: dict[str, str]) -> str:
    """Return in words what was restored.

    Raises:
        ValueError: if the numbers of that are none.
    """
    rows, commands = int(fields.get("rows", 0)), int(fields.get("commands", 0))
    parts = [f"{rows:,} rows"] if rows else []
    parts += [f"{commands:,} commands of the log"] if commands else []
    return ", ".join(parts) or "the snapshot"
