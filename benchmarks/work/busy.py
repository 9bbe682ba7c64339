"""What was used of this machine, by whatever process or the kernel: processors, and a disk."""

import os
from pathlib import Path

__all__ = ["busy_s", "written_bytes"]

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Which ticks of a line of /proc/stat are of no use: idle, and waiting for a disk."""
_SECTOR_BYTES, _SECTORS_WRITTEN = 512, 6
"""Of a line of /sys/dev/block/*/stat."""
_WITH_STEAL = 8
"""So many kinds of ticks are counted; guests are among them already (proc_stat(5))."""


def busy_s() -> float:
    """Return the seconds of use since the machine's start, over all processors."""
    line = _STAT.read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in line.split()[1 : 1 + _WITH_STEAL]]
    used = sum(count for kind, count in enumerate(ticks) if kind not in _IDLE)
    return used / os.sysconf("SC_CLK_TCK")


def written_bytes(folder: Path) -> int:
    """Return what was written to the disk of a folder since the machine's start.

    0 where the system doesn't say so, as on a disk of a network.
    """
    device = folder.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not stat.exists():
        return 0
    return int(stat.read_text(encoding="ascii").split()[_SECTORS_WRITTEN]) * _SECTOR_BYTES
