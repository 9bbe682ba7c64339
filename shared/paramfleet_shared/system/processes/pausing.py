"""Lets a process go on that stands still: ``pausing.py PID stop SECONDS``.

``pausing.py PID slow FACTOR SECONDS`` has it run for one part of FACTOR of the time. It is a
program of its own, because who stands still can't end that itself. A handle of the process
keeps another one with the same number out of it. Run as a script, without any import of ours.
"""

import contextlib
import os
import signal
import sys
import threading
import time

SLICE_S = 0.02
"""How long a slowed process runs at a time."""


def main(words: list[str]) -> None:
    """Do what the words say, for as long as they say."""
    handle, action, *numbers = os.pidfd_open(int(words[0])), *words[1:]
    sys.stdout.write(".")  # whoever started this may stand still now
    sys.stdout.flush()
    os.close(1)
    wait = threading.Event().wait
    with contextlib.suppress(ProcessLookupError):
        try:
            if action == "stop":
                wait(float(numbers[0]))
                return
            factor, until = float(numbers[0]), time.monotonic() + float(numbers[1])  # noqa: TID251
            while time.monotonic() < until:  # noqa: TID251 -- no import of ours
                signal.pidfd_send_signal(handle, signal.SIGSTOP)
                wait(SLICE_S * (factor - 1))
                signal.pidfd_send_signal(handle, signal.SIGCONT)
                wait(SLICE_S)
        finally:
            signal.pidfd_send_signal(handle, signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1:])
