"""How long the processors of this machine were in use, by whatever process or the kernel."""

import os
from pathlib import Path

__all__ = ["busy_s"]

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Which ticks of a line of /proc/stat are of no use: idle, and waiting for a disk."""
_WITH_STEAL = 8
"""So many kinds of ticks are counted; guests are among them already (proc_stat(5))."""


def busy_s() -> float:
    """Return the seconds of use since the machine's start, over all processors."""
    line = _STAT.read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in line.split()[1 : 1 + _WITH_STEAL]]
    used = sum(count for kind, count in enumerate(ticks) if kind not in _IDLE)
    return used / os.sysconf("SC_CLK_TCK")
