"""The names of a job's processes, as ``ps -eo comm`` and ``top`` show them."""

import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["name_process"]

_OWN = Path("/proc/self/comm")
"""The name of this process's main thread, whichever thread writes it."""

_MAX_LENGTH = 15
"""Characters of a name; Linux cuts the rest off."""


def name_process(role: str, index: int | None = None) -> None:
    """Show this process as ``pf-worker-0``, and not as one Python among others; on Linux alone.

    Its command line stays what it is.

    Args:
        role: ``worker``, ``pserver``, ``coordinator`` or ``serving``.
        index: Its index in its role; None where there is only one, or before it is known.
    """
    if sys.platform == "linux":
        name = f"pf-{role}" if index is None else f"pf-{role}-{index}"
        with suppress(OSError):  # a sandbox may forbid it
            _OWN.write_text(name[:_MAX_LENGTH])
