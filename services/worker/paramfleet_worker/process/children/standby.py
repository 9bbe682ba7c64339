"""A process that has imported what a pserver needs before one has died."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from paramfleet_shared.system.processes.keeping import Keeper, tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_shared.system.processes.standby import order_of
from paramfleet_worker.process.children.starting import start_with_pipes

__all__ = ["Standby"]

MODULE = "paramfleet_shared.system.processes.standby"

MAX_ORDER_BYTES = 1 << 16
"""What a pipe holds: nobody waits until the process reads it."""


class Standby:
    """One spare process, or none; it becomes a command when it is taken.

    Belongs to the task that runs the launcher's event loop.

    Args:
        program: The package that it runs, by ``python -P -m``.
        keeper: Receives its process group.
    """

    def __init__(self, program: str, keeper: Keeper) -> None:
        self._begin = module_command(program)
        self._keeper = keeper
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process, unless there is one.

        Args:
            environment: What its interpreter and its libraries read before the order comes.

        Raises:
            OSError: if none can be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        command = tied([*self._begin[:3], MODULE, self._begin[3]])
        self._process = start_with_pipes(command, environment, self._keeper)

    def take(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """Let the process become a command, and return it.

        Args:
            command: Program and arguments.
            environment: All of its environment.

        Returns:
            None if there is no such process, or it can't become this.
        """
        process, num = self._process, len(self._begin)
        if process is None or list(command[:num]) != self._begin:
            return None
        order = order_of(command[num:], environment)
        if len(order) > MAX_ORDER_BYTES:
            return None
        assert process.stdin is not None, "it was asked for"
        try:
            left = memoryview(order)
            while left:  # a signal may end a write early
                left = left[process.stdin.write(left) :]
            process.stdin.close()
        except OSError:  # it has ended
            self.close()
            return None
        self._process = None
        return process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._keeper.discard(process.pid)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
