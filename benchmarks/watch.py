"""What the machine does during a round: a reference loop on every core, and steal time.

The reference loop is always the same arithmetic, so it takes longer when something else has
its core. It runs at the beginning and at the end of a round, and between its turns.
"""

import hashlib
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from conditions import Conditions
from cores import USABLE, Cores, pin_thread

__all__ = ["MachineWatch", "Watch", "steal_of"]

ITERATIONS = 60_000
"""Of the reference loop: some 20 ms. It is C that releases Python's lock and uses no memory."""

EVERY_S = 0.25
"""The reference loop runs no oftener than this between turns: it is to take little time."""

_STAT = Path("/proc/stat")
_STEAL = 7
"""Which of the ticks of a core in /proc/stat are steal; the sum of those up to it is all time
(proc_stat(5): what follows is counted in those before)."""


class Watch(Protocol):
    """What says how a round went."""

    def begin(self) -> None:
        """Begin a round."""
        ...

    def look(self) -> None:
        """Take note of the machine between two turns."""
        ...

    def end(self) -> Conditions:
        """End the round."""
        ...


class _Loop(NamedTuple):
    """One run of the reference loop."""

    wall_s: float
    cpu_s: float


class MachineWatch:
    """Reads this machine.

    Args:
        cores: Each gets a reference loop of its own; without any there is one, anywhere.
    """

    def __init__(self, cores: Cores = USABLE) -> None:
        self._cores = cores
        places: list[Cores] = [(core,) for core in cores] or [()]
        self._threads = [
            ThreadPoolExecutor(1, "reference", initializer=pin_thread, initargs=(place,))
            for place in places
        ]
        self._loops: list[list[_Loop]] = [[] for _ in places]
        self._looked_at = 0.0
        self._ticks_before: list[int] = []

    def begin(self) -> None:
        """Begin a round: run the loop, and read the steal time."""
        self._loops = [[] for _ in self._threads]
        self._ticks_before = self._ticks()
        self._run_loops()

    def look(self) -> None:
        """Run the loop, unless it has just run."""
        if time.perf_counter() - self._looked_at >= EVERY_S:
            self._run_loops()

    def end(self) -> Conditions:
        """Run the loop again, and return what the round met."""
        self._run_loops()
        ticks = zip(self._ticks(), self._ticks_before, strict=True)
        steal = steal_of(after - before for after, before in ticks)
        wall_s, cpu_s = max(
            (sum(loop.wall_s for loop in loops), sum(loop.cpu_s for loop in loops))
            for loops in self._loops
        )
        waiting = max(0.0, 1.0 - cpu_s / wall_s)
        return Conditions(steal, wall_s / len(self._loops[0]), waiting)

    def _run_loops(self) -> None:
        running = [thread.submit(_reference) for thread in self._threads]
        for loops, each in zip(self._loops, running, strict=True):
            loops.append(each.result())
        self._looked_at = time.perf_counter()

    def _ticks(self) -> list[int]:
        """Return the ticks of this watch's cores so far, by kind; none where nobody counts."""
        try:
            lines = _STAT.read_text(encoding="ascii").splitlines()
        except OSError:
            return []
        names = {f"cpu{core}" for core in self._cores} or {"cpu"}
        mine = [line.split()[1:] for line in lines if line.partition(" ")[0] in names]
        return [sum(map(int, column)) for column in zip(*mine, strict=True)]


def steal_of(ticks: Iterable[int]) -> float:
    """Return the share of steal among the ticks of a core, in the order of /proc/stat."""
    counts = list(ticks)[: _STEAL + 1]
    if len(counts) <= _STEAL or not sum(counts):
        return 0.0
    return counts[_STEAL] / sum(counts)


def _reference() -> _Loop:
    wall, cpu = time.perf_counter(), time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"reference", b"loop", ITERATIONS)
    return _Loop(time.perf_counter() - wall, time.thread_time() - cpu)
