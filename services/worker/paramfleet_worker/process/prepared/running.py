"""Starts a prepared process when it is first needed, and ends it."""

import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.process.prepared.starting import Prepared

__all__ = ["PreparedProcess"]

PADDING = "." * 4096
"""Room for the command lines of forks."""


class PreparedProcess:
    """The prepared process of this one; it starts when something is first started by it.

    Args:
        modules: Programs beside those of jobs that may be forked.
        folder: Where it starts; it imports modules from there, too.
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
            self._process = subprocess.Popen(  # noqa: S603 -- our own module
                tied([sys.executable, "-m", module, str(its.fileno()), PADDING]),
                cwd=self._folder,
                env={**read_environment(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        return ours
