"""How many files a process may have open."""

import contextlib
import resource

__all__ = ["MORE_OPEN_FILES", "num_open_files", "raise_open_files"]

MORE_OPEN_FILES = (
    "start it again after `ulimit -n 16384` in the same shell; where that is refused, an "
    "administrator raises nofile in /etc/security/limits.conf, LimitNOFILE= of a service, or "
    "--ulimit nofile= of a container"
)
"""What to do where they are too few."""

_MAX_OPEN_FILES = 1 << 20
"""More is not asked for: some programs look at each number up to the limit."""


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
