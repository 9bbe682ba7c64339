"""Starts a prepared process when it is first needed, and ends it."""

import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_worker.process.prepared.starting import Prepared

__all__ = ["PreparedProcess"]

PADDING = "." * 4096
"""Room for the command lines of forks."""


class PreparedProcess:
    """The prepared process of this one; it starts when something is first started by it.

    Args:
        modules: Programs beside those of jobs that may be forked.
        folder: Where it starts, and imports modules from, too; None for the working folder,
            from which it imports none.
    """

    def __init__(self, modules: Collection[str] = (), *, folder: Path | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self.prepared = Prepared(self._prepare, starters=True, modules=modules)

    def close(self) -> None:
        """End it, not what it has forked."""
        self.prepared.close()
        if self._process is not None:
            self._process.wait()

    def _prepare(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            module = f"{__package__}.process"  # which imports torch
            command = module_command(module, str(its.fileno()), PADDING)
            if self._folder is not None:
                command.remove("-P")
            self._process = subprocess.Popen(  # noqa: S603 -- our own module
                tied(command),
                cwd=self._folder,
                env={**read_environment(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        return ours
