"""The starter's end of the keeper's pipe."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Keeper", "behind_gate"]

END_WITHIN_S = 5.0


def behind_gate(command: Sequence[str]) -> list[str]:
    """Return what starts a command that waits for a byte on its standard input first.

    So the keeper can be told of it before it does anything.
    """
    gate = Path(__file__).with_name("gate.py")
    return [sys.executable, "-I", "-S", str(gate), *command]


class Keeper:
    """Makes sure that no process group outlives its starter, however that ends.

    Losing the keeper itself costs this protection and nothing else, so a broken pipe to
    it is not an error of the job.
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
        except BrokenPipeError:  # somebody killed the keeper
            return
