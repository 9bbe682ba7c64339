"""A watchdog in an event loop: how long it was held up, by the process's own doing.

It asks for a turn again and again. A turn that comes late was held up by a callback, or by a
thread that kept the interpreter's lock. Time in which a thread was ready and the machine had
no core for it is taken off, as far as Linux counts it: others' load isn't this process's.
"""

import asyncio
import threading
from pathlib import Path

__all__ = ["LoopWatch"]

TASKS = Path("/proc/self/task")

_PERIOD_S = 0.005


class LoopWatch:
    """The longest pause so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Watch the loop that this runs on, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            waited, began = _waited_s(), now()
            await asyncio.sleep(_PERIOD_S)
            late = now() - began - _PERIOD_S
            if late > self.longest_s:
                self.longest_s = max(self.longest_s, late - _longest_wait_s(waited))


def _waited_s() -> dict[str, float]:
    """Return how long each thread has waited for a core."""
    waited = {}
    for thread in TASKS.iterdir():
        try:
            text = (thread / "schedstat").read_text(encoding="ascii")
        except OSError:
            continue  # it ended
        waited[thread.name] = int(text.split()[1]) / 1e9
    return waited


def _longest_wait_s(before: dict[str, float]) -> float:
    """Return what the loop's thread and the worst of the others have waited since."""
    own = str(threading.get_native_id())
    since = {t: now - before.get(t, 0.0) for t, now in _waited_s().items()}
    others = [seconds for thread, seconds in since.items() if thread != own]
    return since.get(own, 0.0) + max(others, default=0.0)
