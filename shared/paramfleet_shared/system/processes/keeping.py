"""What a starter does so that nothing it starts outlives it.

Two ways, each for what the other can't do. The kernel kills a tied process with its starter,
whatever becomes of the keeper; but on Linux alone, and not what that process has started. The
keeper kills whole groups anywhere, unless it is killed itself.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Keeper", "behind_gate", "tied"]

END_WITHIN_S = 5.0


def tied(command: Sequence[str]) -> list[str]:
    """Return what starts a command that Linux kills when this process ends, however it ends.

    To be started by the thread that calls this: the kernel's tie is to that thread. So only
    the main thread's commands are tied, which ends with the process; those of another thread
    just run.
    """
    return _through("now", command)


def behind_gate(command: Sequence[str], *, gate: int = 0) -> list[str]:
    """Return what starts a command that waits for a byte on a descriptor first.

    So a keeper can be notified of it before it does anything. It is ``tied`` as well.

    Args:
        command: Program and arguments.
        gate: The descriptor, which the command doesn't get; 0 is its standard input, which is
            empty then.
    """
    return _through(f"gate{gate}", command)


class Keeper:
    """Makes sure that no process group outlives its starter, however that ends.

    Losing the keeper itself costs this protection and nothing else, so a broken pipe to
    it is not an error of the job. What was started ``behind_gate`` still ends with its starter.
    """

    def __init__(self) -> None:
        script = Path(__file__).with_name("keeper.py")
        self._process = subprocess.Popen(  # noqa: S603 -- our own script
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Return the keeper's process id."""
        return self._process.pid

    def add(self, group: int) -> None:
        """Put a process group on the list; when this returns, it will be seen."""
        self._write(f"+{group}\n")

    def discard(self, group: int) -> None:
        """Take a process group off the list."""
        self._write(f"-{group}\n")

    def close(self) -> None:
        """End the keeper; it kills what is still on the list."""
        assert self._process.stdin is not None, "it was asked for"
        self._process.stdin.close()
        self._process.wait(END_WITHIN_S)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None, "it was asked for"
        try:
            self._process.stdin.write(line.encode())
        except (BrokenPipeError, ValueError):  # somebody killed the keeper, or closed it
            return


def _through(how: str, command: Sequence[str]) -> list[str]:
    is_main = threading.current_thread() is threading.main_thread()
    starter = str(os.getpid()) if is_main else "0"
    script = Path(__file__).with_name("tether.py")
    return [sys.executable, "-I", "-S", str(script), starter, how, *command]
