"""The programs of a job that is followed: the launch, the exporter and the server.

Each can be killed, and started again by the same command. Used from the main thread, with which
they end.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from goodput import members_of
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from peer.children import ChildFailedError
from ports import free_port

__all__ = ["Program", "Programs"]

DIES_WITHIN_S = 30.0
LAST_WORDS = 3000
POLL_S = 0.01

_PAUSE = threading.Event()


class Program:
    """A command that is started again and again.

    Args:
        name: Of its logs.
        folder: Where it runs, and where its logs are.
        words: Of ``paramfleet``.
        environment: Variables beside this process's.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.num_starts = 0
        self._folder = folder
        self._command = [sys.executable, "-m", "paramfleet_worker", *words]
        self._environment = {**read_environment(), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return which process it is."""
        return self._running.pid

    @property
    def log(self) -> str:
        """Return what the process that was started last has said."""
        return self._path.read_text(errors="replace") if self.num_starts else ""

    def start(self) -> None:
        """Start it."""
        self.num_starts += 1
        with self._path.open("wb") as log:
            self._process = self._popen(log)

    def kill(self) -> None:
        """Kill it and the processes of its job, all at once."""
        members = [pid for pid, _ in members_of(self.pid)]
        descriptors = [os.pidfd_open(pid) for pid in members]
        for descriptor in descriptors:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in descriptors:
            select.select([descriptor], [], [], DIES_WITHIN_S)
            os.close(descriptor)
        self._running.wait(DIES_WITHIN_S)

    def kill_worker(self) -> None:
        """Kill one worker of its job, and wait for the end of the launch.

        Raises:
            ChildFailedError: if the launch says that all went well.
        """
        worker = next(pid for pid, role in members_of(self.pid) if role == "worker")
        os.kill(worker, signal.SIGKILL)
        if not self._running.wait(DIES_WITHIN_S):
            words = f"{self.name} ended well without a worker:\n{self.log[-LAST_WORDS:]}"
            raise ChildFailedError(words)

    def end(self) -> int:
        """Ask it to end; return its exit code."""
        self._running.terminate()
        return self._running.wait(DIES_WITHIN_S)

    def close(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def ended(self) -> bool:
        """Return whether it has ended well.

        Raises:
            ChildFailedError: if it has failed.
        """
        code = self._running.poll()
        if code:
            words = f"{self.name} ended with {code}:\n{self.log[-LAST_WORDS:]}"
            raise ChildFailedError(words)
        return code == 0

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was started"
        return self._process

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.name}-{self.num_starts}.log"

    def _popen(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            tied(self._command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )


class Programs:
    """The three of them.

    Args:
        folder: Gets logs and the stream; ``model/config.yaml`` in it is what is trained.
        job: Its name.
        tokens: File of the tokens that the server takes.
        every_s: Seconds between two changes.
        base_changes: Changes after which the exporter makes a base.
    """

    def __init__(
        self, folder: Path, *, job: str, tokens: Path, every_s: float, base_changes: int
    ) -> None:
        yaml, stream = folder / "model" / "config.yaml", folder / "stream"
        launch = ["launch", "--verbose", "--server_num=2", "--worker_num=2", f"--job={job}"]
        launch += ["--no-share-imports", f"--log-dir={folder / 'log'}", "-m", str(yaml)]
        follow = ["delta", "follow", str(stream), f"--job={job}", "--stay", "--keep=1000"]
        follow += [f"--every={every_s}", f"--dense-every={2 * every_s}"]
        follow += [f"--base-changes={base_changes}"]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        serve = ["serve", f"--from={stream}", f"--port={port}"]
        serve += ["--poll-s=0.01", "--retry-s=0.1"]
        self.job = Program("job", folder, launch, {"PARAMFLEET_LEASE_RENEW_S": "0.2"})
        self.exporter = Program("exporter", folder, follow)
        self.server = Program("server", folder, serve, {"PARAMFLEET_TOKENS_FILE": str(tokens)})

    def wait(self, holds: Callable[[], Any], *, within_s: float, what: str) -> None:
        """Wait until something is so, while all run.

        Raises:
            ChildFailedError: if one fails, or it takes too long.
        """
        deadline = time.perf_counter() + within_s
        while not holds():
            for each in (self.job, self.exporter, self.server):
                if each.num_starts:
                    each.ended()
            if time.perf_counter() > deadline:
                logs = "\n".join(
                    f"--- {each.name}\n{each.log[-LAST_WORDS:]}"
                    for each in (self.job, self.exporter, self.server)
                )
                words = f"{what} didn't come in {within_s:.0f} s:\n{logs}"
                raise ChildFailedError(words)
            _PAUSE.wait(POLL_S)

    def close(self) -> None:
        """Kill all that run."""
        for each in (self.server, self.exporter, self.job):
            each.close()
