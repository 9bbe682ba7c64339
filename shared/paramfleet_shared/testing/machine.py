"""What the machine did during a test: its load, steal time, and what ran."""

import os
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["MachineRecord"]

_PROC = Path("/proc")

_IDLE, _STEAL = slice(3, 5), 7
"""Ticks of a core in /proc/stat: idle and waiting for a disk, and taken by the hypervisor."""

_COUNTED = 8
"""Kinds of ticks; what follows is counted in those before (proc_stat(5))."""

_USED = slice(11, 13)
"""Ticks of a process in /proc/PID/stat behind its name: user and system."""

_MOST_NAMED = 6


class _Process(NamedTuple):
    name: str
    ticks: int


class MachineRecord:
    """The machine's counters at one moment, for a report of what happened since.

    Args:
        proc: Folder of the kernel's counters, for tests.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._began_at = time.perf_counter()
        self._ticks = self._read_ticks()
        self._processes = self._read_processes()

    def report(self) -> str:
        """Return load, steal, and the processes that used the most processor time since."""
        seconds = time.perf_counter() - self._began_at
        ticks = [now - was for now, was in zip(self._read_ticks(), self._ticks, strict=False)]
        total = sum(ticks)
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        if not total:  # another system than Linux counts elsewhere
            return f"load average {load} on {os.cpu_count()} cores"
        busy, steal = 1 - sum(ticks[_IDLE]) / total, ticks[_STEAL] / total
        return (
            f"load average {load} on {os.cpu_count()} cores; in {seconds:.0f} s they were "
            f"busy for {busy:.0%} of the time, and the hypervisor took {steal:.1%}; most "
            f"processor time: {self._most()}"
        )

    def _most(self) -> str:
        per_s = os.sysconf("SC_CLK_TCK")
        used = {
            pid: (now.ticks - self._processes.get(pid, _Process("", 0)).ticks, now.name)
            for pid, now in self._read_processes().items()
        }
        most = sorted(used.items(), key=lambda each: -each[1][0])[:_MOST_NAMED]
        named = [f"{name} {pid} ({n / per_s:.1f} s)" for pid, (n, name) in most if n]
        return ", ".join(named) or "none"

    def _read_ticks(self) -> list[int]:
        words = self._read("stat").partition("\n")[0].split()
        return [int(word) for word in words[1 : 1 + _COUNTED]]

    def _read_processes(self) -> dict[str, _Process]:
        found = {}
        for folder in self._proc.glob("[0-9]*"):
            head, _, rest = self._read(f"{folder.name}/stat").rpartition(")")
            if rest:  # else it has ended
                ticks = sum(map(int, rest.split()[_USED]))
                found[folder.name] = _Process(head.partition("(")[2], ticks)
        return found

    def _read(self, name: str) -> str:
        """Return a file's text; empty where there is none."""
        try:
            return (self._proc / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
