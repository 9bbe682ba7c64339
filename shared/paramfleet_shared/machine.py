"""What this machine, or the container on it, lets a process take."""

import contextlib
import os
import resource
from pathlib import Path

__all__ = ["memory_bytes", "num_open_files", "raise_open_files"]

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of version 2 and of version 1."""

_MAX_OPEN_FILES = 1 << 20
"""More is not asked for: some programs look at each number up to the limit."""


def memory_bytes() -> int:
    """Return the bytes of memory there are: the container's limit, else the machine's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            return min(physical, int(path.read_text(encoding="ascii")))
    return physical


def num_open_files() -> int:
    """Return the number of files and sockets that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> int:
    """Raise that number as far as an unprivileged process may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return num_open_files()
