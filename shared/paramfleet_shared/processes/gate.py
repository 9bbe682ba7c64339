"""What a launched process runs first: wait until the keeper knows of it.

Started as a bare script, ``python -I -S gate.py command...``, with a pipe as standard
input. A byte from the starter lets it go on; the end of the pipe means that the
starter died in between, and then the command never starts.
"""

import os
import sys


def main() -> None:
    """Wait for the byte, then become the command."""
    if not os.read(0, 1):
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    command = sys.argv[1:]
    try:
        os.execvp(command[0], command)  # noqa: S606 -- no shell is what we want
    except OSError as exc:
        sys.exit(f"can't run {command[0]}: {exc.strerror}")


if __name__ == "__main__":
    main()
