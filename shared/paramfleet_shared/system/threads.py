"""Threads for work that others needn't wait for."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

__all__ = ["background_threads"]

NICENESS = 10
"""Of such threads. Where all cores are busy, each gets about a tenth of what others get; where
one is free, nothing is slower."""


def background_threads(num: int, name: str) -> ThreadPoolExecutor:
    """Return threads that take the time of the processor that others leave.

    Elsewhere than on Linux they are as all others.

    Args:
        num: Most of them.
        name: What their names begin with.
    """
    return ThreadPoolExecutor(num, thread_name_prefix=name, initializer=_stand_back)


def _stand_back() -> None:
    """Lower the priority of this thread; on Linux it has one of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it
            niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
