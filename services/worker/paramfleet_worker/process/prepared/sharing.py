"""The prepared process of one launch: its pservers and workers share what they import."""

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.process.prepared.running import PADDING
from paramfleet_worker.process.prepared.starting import READY, Prepared

__all__ = ["SharedImports"]

ANSWER_WITHIN_S = 10.0
"""How long a fork may take; then this process is given up, and programs are executed."""


class SharedImports:
    """A process that imports for a launch; it is used by the thread that makes it.

    Where it ends, or can't fork, programs are executed as ever.

    Args:
        environment: What the job's processes have in common.
        modules: What workers need beside what pservers need.
        say: Is told when the process is given up.
        answer_within_s: How long a fork may take.

    Raises:
        OSError: if it can't be started.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        *,
        say: Callable[[str], None],
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._say = say
        self._answer_within_s = answer_within_s
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(answer_within_s)
        self._line = ours
        self._prepared = Prepared(lambda: ours, starters=False, is_needed=False)
        self._num_ready = self._num_wanted = 0
        program = str(Path(__file__).with_name("process.py"))  # which imports torch
        command = [sys.executable, program, str(its.fileno()), PADDING, *modules]
        with its:
            self._process = subprocess.Popen(  # noqa: S603 -- our own module
                tied(command),
                env={"OPENBLAS_NUM_THREADS": "1", **environment},  # its threads would begin
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether forks can be asked for."""
        return self._line.fileno() >= 0

    def want(self, num_parts: int) -> None:
        """Have so many parts imported: 1 for pservers, 2 for workers, too."""
        if self._num_wanted == 1 and num_parts == 2 and self.is_alive:
            with contextlib.suppress(OSError):  # it has ended, which is seen when it is read
                self._line.send(b"{}")
        self._num_wanted = max(self._num_wanted, num_parts)

    def has(self, num_parts: int) -> bool:
        """Return whether so many parts are imported, or never will be."""
        while self.is_alive and self._num_ready < num_parts:
            if not select.select([self._line], [], [], 0)[0]:
                return False
            try:
                said = self._line.recv(len(READY))
            except OSError:
                said = b""
            if not said:
                self.close()
            self._num_ready += said == READY
        return True

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let ``subprocess`` fork what it would execute, if it can be."""
        if not self.is_alive:
            yield
            return
        with self._prepared.starting():
            yield
        self._end_if_given_up()

    def _end_if_given_up(self) -> None:
        """End a process that hasn't answered in time: it would fork what is executed now."""
        if not self.is_alive:
            self.close()
            self._say(
                f"the process with the shared imports, pid {self._process.pid}, has ended "
                f"or did not answer within {self._answer_within_s:.0f} s, and is not used "
                "any more: new processes do their own imports, which takes longer"
            )

    def close(self) -> None:
        """End the process, not what it has forked."""
        self._line.close()
        self._process.kill()
        self._process.wait()
