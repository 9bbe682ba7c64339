"""What a collective worker runs first: tie its life to the agent's.

Started as a bare script, ``python -I -S tether.py PID command...``. torch's agent starts each
worker in a session of its own, so that nothing would end it if the agent is killed. Linux
then kills it for us; elsewhere it goes on until it misses the others.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the command."""
    agent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(agent):  # it died before we asked
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 -- no shell is what we want
    except OSError as exc:
        sys.exit(f"can't run {command[0]}: {exc.strerror}")


if __name__ == "__main__":
    main()
