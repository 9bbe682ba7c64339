"""Become a command that runs on some cores: ``python -I -S pinned.py 0,1 command...``.

Where the system does not allow it the command runs all the same, on the cores it has.
"""

import contextlib
import os
import sys


def main() -> None:
    """Pin this process, then become the command."""
    numbers, *command = sys.argv[1:]
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {int(number) for number in numbers.split(",")})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
