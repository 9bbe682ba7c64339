"""Which cores a process of a benchmark gets: the one place that decides.

Without this the kernel moves processes between cores, and where it puts them differs from run
to run. The rule is the same for every system of a comparison:

- Cores are halved: servers get the first half, clients the other one, with the odd core. So
  of two cores the server has one and the client the other; of one core both have that one.
- Workers that train have a core each, in turns: worker 0 the first, worker 1 the next. Their
  servers may use all cores, because the workers leave none free.
- A process whose case is several threads or processes, as one that reads files beside, may use
  all cores.

Where the system has no affinity, or does not let us set it, nothing is pinned.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

__all__ = [
    "USABLE",
    "Cores",
    "Role",
    "cores_of",
    "cores_of_worker",
    "pin_process",
    "pin_thread",
    "pinned",
    "thread_on",
]

Cores = tuple[int, ...]
"""Numbers of cores; none of them means that nothing is pinned."""

Role = Literal["server", "client"]


def _usable() -> Cores:
    if sys.platform != "linux":
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


USABLE: Cores = _usable()
"""The cores that this process had when it began."""


def cores_of(role: Role, usable: Cores = USABLE) -> Cores:
    """Return the cores of a server or of a client.

    Args:
        role: Which of the two.
        usable: What there is to share.
    """
    half = len(usable) // 2
    if not half:
        return usable
    return usable[:half] if role == "server" else usable[half:]


def cores_of_worker(index: int, usable: Cores = USABLE) -> Cores:
    """Return the core of a worker that trains.

    Args:
        index: Which worker, from 0 on.
        usable: What there is to share.
    """
    return (usable[index % len(usable)],) if usable else ()


def pinned(command: Sequence[str], cores: Cores) -> list[str]:
    """Return what starts a command on these cores, from its first instruction on.

    Libraries look at their cores when they start, to choose a number of threads. So a command
    is pinned before it starts, and not afterwards.
    """
    if not cores:
        return list(command)
    script = Path(__file__).with_name("pinned.py")
    numbers = ",".join(map(str, cores))
    return [sys.executable, "-I", "-S", str(script), numbers, *command]


def pin_process(pid: int, cores: Cores) -> None:
    """Pin every thread of a process that has started, and so those that they start.

    Args:
        pid: The process; nothing happens if it has ended.
        cores: Where to.
    """
    done: set[str] = set()
    while cores and (left := _threads(pid) - done):
        for thread in left:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), cores)
        done |= left


def pin_thread(cores: Cores) -> None:
    """Pin the calling thread, and those that it starts from now on."""
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def thread_on(cores: Cores) -> Iterator[None]:
    """Keep the calling thread on these cores; afterwards it has again those it had."""
    before = _usable()
    pin_thread(cores)
    try:
        yield
    finally:
        pin_thread(before)


def _threads(pid: int) -> set[str]:
    try:
        return {each.name for each in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return set()
