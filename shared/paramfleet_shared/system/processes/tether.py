"""What a started process runs first: tie its life to its starter's, then become its command.

Started as a bare script, ``python -I -S tether.py PID HOW command...``. Linux then kills the
process when the thread that started it ends; PID 0 asks for no tie. With the HOW ``gate0``
the command starts only after a byte on the standard input, by when the starter has put the
process on its keeper's list; if the pipe ends instead, the starter died in between, and the
command never starts. ``gate5`` waits on descriptor 5, and leaves the standard input alone. With
``now`` it starts at once, with the standard input it was given.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie(starter: int) -> bool:
    """Let the kernel kill this process when the thread that started it ends; on Linux alone.

    It takes nothing along that this process starts in its turn.

    Args:
        starter: Process id of the starter; 0 does nothing.

    Returns:
        False if the starter ended before the tie was made.
    """
    if starter and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return os.getppid() == starter
    return True


def main() -> None:
    """Tie, wait for the byte if need be, then become the command."""
    starter, how, *command = sys.argv[1:]
    if not tie(int(starter)):
        sys.exit(1)
    if how != "now":
        gate = int(how.removeprefix("gate"))
        if not os.read(gate, 1):
            sys.exit(1)
        os.close(gate)
        if gate == 0:
            nothing = os.open(os.devnull, os.O_RDONLY)  # the lowest that is free, so 0 again
            os.set_inheritable(nothing, True)  # noqa: FBT003 - it has no name
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; exec keeps that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 -- no shell is what we want
    except OSError as exc:
        sys.exit(f"can't run {command[0]}: {exc.strerror}")


if __name__ == "__main__":
    main()
