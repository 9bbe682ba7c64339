"""Outlives its starter by a moment, and ends the processes on its list.

Started as a bare script, ``python -I -S keeper.py``, in a session of its own. It reads
``+group`` and ``-group`` lines from a pipe that only the starter holds open. When the
pipe ends, for whatever reason, even SIGKILL, every process group still on the list is
killed: each process with all that it has started.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the list until the pipe ends, then kill what is on it."""
    groups: set[int] = set()
    with contextlib.suppress(ValueError):  # half a line: the starter died in the middle
        for line in sys.stdin:
            group = int(line[1:])
            if line[0] == "+":
                groups.add(group)
            else:
                groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
