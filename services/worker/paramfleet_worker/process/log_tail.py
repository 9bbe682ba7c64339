"""The end of a log, which says why its process died."""

import os
from pathlib import Path

__all__ = ["last_lines"]

TAIL_BYTES = 1 << 16
"""The last lines of a log are looked for in so much of its end."""


def last_lines(log: Path, num_lines: int) -> list[str]:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-num_lines:]
