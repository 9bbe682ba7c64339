"""Tracebacks of a job's processes, held back until it is known what became of the process.

Where an error ends the job, the launcher says it, and where it was, in few lines, and the
traceback is in the log. Where the job goes on, the traceback is shown.
"""

from paramfleet_worker.core.causes import Tracebacks
from paramfleet_worker.core.events import ProcessName

__all__ = ["ENDING_HELD_S", "HELD_S", "MAX_HELD_BYTES", "MAX_HELD_LINES", "HeldTracebacks"]

HELD_S = 2.0
"""Seconds after which a traceback is shown whose process hasn't ended."""

ENDING_HELD_S = 15.0
"""The same of a process that has recorded what ends it: its end may take a while on busy cores,
or never come, as where other threads go on."""

MAX_HELD_LINES = 2000
MAX_HELD_BYTES = 1 << 20
"""Of one process: one that writes more goes on, or has nothing that should wait."""


class HeldTracebacks:
    """Takes lines and gives them back; one thread may take while another asks for them."""

    def __init__(self) -> None:
        self._ones: dict[ProcessName, _Held] = {}
        self._drops = False

    def passed(self, name: ProcessName, line: bytes, *, is_ending: bool = False) -> list[bytes]:
        """Take the next line of a process, and return what is to be shown now.

        Behind a traceback other lines wait, too, so that all stay in their order. If they are
        more than ``MAX_HELD_LINES`` or ``MAX_HELD_BYTES``, all are shown.

        Args:
            name: The process.
            line: Without its end.
            is_ending: Whether the line says what ended the process, as a traceback does.
        """
        one = self._ones.setdefault(name, _Held())
        text = line.decode(errors="replace").rstrip("\r")
        is_cause = one.tracebacks.has(text) or is_ending
        one.is_ending |= is_ending
        if self._drops:
            return [] if is_cause else [line]
        if not is_cause and not one.lines:
            return [line]
        one.lines.append((line, is_cause))
        one.num_bytes += len(line)
        if len(one.lines) <= MAX_HELD_LINES and one.num_bytes <= MAX_HELD_BYTES:
            return []
        return self.released(name)

    def released(self, name: ProcessName) -> list[bytes]:
        """Give back what a process wrote: it, or its job, goes on."""
        one = self._ones.get(name)
        if one is None:
            return []
        lines = [line for line, _ in one.lines]
        one.clear()
        return lines

    def all_released(self) -> list[tuple[ProcessName, list[bytes]]]:
        """Give back everything."""
        return [(name, self.released(name)) for name in list(self._ones)]

    def old(self, now: float) -> list[tuple[ProcessName, list[bytes]]]:
        """Give back what has been held for too long, as far as these calls have seen it.

        That is ``HELD_S``, or ``ENDING_HELD_S`` of a process that says what ends it.

        Args:
            now: Seconds of a clock that never goes back.
        """
        given = []
        for name, one in list(self._ones.items()):
            if not one.lines:
                continue
            if one.since is None:
                one.since = now
            elif now - one.since >= (ENDING_HELD_S if one.is_ending else HELD_S):
                given.append((name, self.released(name)))
        return given

    def dropped(self) -> list[tuple[ProcessName, list[bytes]]]:
        """Leave tracebacks out, from now on; give back the other lines that were held."""
        self._drops = True
        given = []
        for name, one in list(self._ones.items()):
            given.append((name, [line for line, is_cause in one.lines if not is_cause]))
            one.clear()
        return given


class _Held:
    """Lines of one process."""

    def __init__(self) -> None:
        self.tracebacks = Tracebacks()
        self.lines: list[tuple[bytes, bool]] = []
        """Each, and whether it says what ended the process."""
        self.num_bytes = 0
        self.is_ending = False
        """Whether one of them says what ends the process."""
        self.since: float | None = None
        """When the first of them was seen."""

    def clear(self) -> None:
        """Hold none."""
        self.lines.clear()
        self.num_bytes = 0
        self.is_ending = False
        self.since = None
