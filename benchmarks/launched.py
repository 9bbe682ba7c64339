"""A training under ``paramfleet launch``, whose script takes and gives notes in a folder."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from peer.children import ChildFailedError

__all__ = ["LaunchedJob"]

STOPPED_WITHIN_S = 15.0

POLL_S = 0.01

_HELD_S = 0.6
"""So long nobody steps before ``hold`` returns."""

_HELD_WITHIN_S = 90.0

LAST_WORDS = 2000
"""Characters of a failed launcher's output that are kept."""


class LaunchedJob:
    """The launcher and the notes of its processes.

    Args:
        folder: For notes and logs.
        launch: Options of the launch, beside where its logs go.
        script: In ``work``; it gets the folder, and ends when that has a file ``end``.
        options: Of the script.
        environment: Variables of the job beside this process's.
    """

    ended_within_s = 180.0
    """From the file ``end`` to the end of the launcher."""

    def __init__(
        self,
        folder: Path,
        *,
        launch: Sequence[str],
        script: str,
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._read: dict[str, _Growing] = {}
        self._steps: dict[int, _Steps] = {}
        self._log = folder / "launch.log"
        self._environment = {**read_environment(), **(environment or {})}
        path = Path(__file__).parent / "work" / script
        command = [
            *(sys.executable, "-m", "paramfleet_worker", "launch", *launch),
            "--no-share-imports",  # each process is told by its command and its environment
            *(f"--log-dir={folder / 'log'}", str(path), f"--folder={folder}", *options),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the launcher's process."""
        return self._process.pid

    def demand_alive(self) -> None:
        """Pass while the launcher runs, or has ended well.

        Raises:
            ChildFailedError: if it has failed.
        """
        if self._process.poll():
            raise self._failure("the job failed")

    def end(self) -> None:
        """Let the training end.

        Raises:
            ChildFailedError: if it doesn't end well.
        """
        (self._folder / "end").touch()
        self.finish()

    def finish(self) -> None:
        """Wait until the training has ended.

        Raises:
            ChildFailedError: if it doesn't end well.
        """
        try:
            code = self._process.wait(self.ended_within_s)
        except subprocess.TimeoutExpired:
            words = f"the end didn't come within {self.ended_within_s:.0f} s"
            raise self._failure(words) from None
        if code:
            raise self._failure("the job failed")

    def stop(self) -> None:
        """End all its processes, if they haven't ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(STOPPED_WITHIN_S)
                except subprocess.TimeoutExpired:
                    continue

    def hold(self) -> None:
        """Let nobody step, in a script that holds for a file of that name.

        Returns when nobody has stepped, and nothing else was at work, for a moment.

        Raises:
            ChildFailedError: if that doesn't come.
        """
        (self._folder / "hold").touch()
        busy_at = time.perf_counter()

        def is_quiet() -> bool:
            nonlocal busy_at
            now = time.perf_counter()
            ends = [steps[-1][1] for steps in map(self.steps, list(self._steps)) if steps]
            if self._is_at_work():
                busy_at = now
            return now - max([busy_at, *ends]) > _HELD_S

        self._wait(is_quiet, _HELD_WITHIN_S, "a pause")

    def release(self) -> None:
        """Let the workers step."""
        (self._folder / "hold").unlink(missing_ok=True)

    def steps(self, rank: int) -> list[tuple[float, float]]:
        """Return when a worker's steps began and ended; what is returned grows."""
        known = self._steps.setdefault(rank, _Steps())
        lines = self._lines(f"worker-{rank}")
        for note in map(json.loads, lines[known.num_lines :]):
            if note["event"] == "step":
                known.steps.append((note["began"], note["at"]))
        known.num_lines = len(lines)
        return known.steps

    def wait_steps(self, num_steps: int, *, num_workers: int, within_s: float) -> None:
        """Wait until each worker has stepped, and all together have taken so many steps.

        Raises:
            ChildFailedError: if they don't.
        """

        def have_stepped() -> bool:
            steps = [self.steps(rank) for rank in range(num_workers)]
            return all(steps) and sum(map(len, steps)) >= num_steps

        self._wait(have_stepped, within_s, "the first steps")

    def kill_process(
        self, pid: int, *, num_workers: int, within_s: float
    ) -> tuple[float, list[float]]:
        """Kill a process, and wait until all workers have stepped on.

        Args:
            pid: Of the job.
            num_workers: Of the job.
            within_s: Seconds for the death, and for the steps.

        Returns:
            When it was killed, and when each worker ended a step that it began after the death.

        Raises:
            ChildFailedError: if that doesn't come.
        """
        descriptor = os.pidfd_open(pid)
        try:
            killed = time.perf_counter()
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not select.select([descriptor], [], [], within_s)[0]:
                raise self._failure("process", str(pid), "doesn't die")
        finally:
            os.close(descriptor)
        died = time.perf_counter()
        ends: list[float] = []

        def have_stepped() -> bool:
            ends[:] = self._first_ends(died, num_workers)
            return len(ends) == num_workers

        self._wait(have_stepped, within_s, "a step after the kill")
        return killed, ends

    def _first_ends(self, since: float, num_workers: int) -> list[float]:
        """Return when workers ended their first step that they began after a moment."""
        found = []
        for steps in map(self.steps, range(num_workers)):
            first = bisect_left(steps, (since, 0.0))
            found += [end for _, end in steps[first : first + 1]]
        return found

    def _is_at_work(self) -> bool:
        """Return whether something beside the steps is at work that ``hold`` waits for."""
        return False

    def _lines(self, name: str) -> list[str]:
        """Return the whole lines of a file in the folder; none if it isn't there."""
        growing = self._growing(name)
        growing.read()
        return growing.lines

    def _growing(self, name: str) -> "_Growing":
        return self._read.setdefault(name, _Growing(self._folder / name))

    def _notes(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines(name)]

    def _wait(self, is_done: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait until something is so.

        Raises:
            ChildFailedError: if the job ends before, or it takes too long.
        """
        deadline, pause = time.perf_counter() + limit_s, threading.Event()
        while not is_done():
            if self._process.poll() is not None:
                raise self._failure("the job ended")
            if time.perf_counter() > deadline:
                raise self._failure(what, "didn't come within", str(limit_s), "s")
            pause.wait(POLL_S)

    def _failure(self, *why: str) -> ChildFailedError:
        words = self._log.read_text(errors="replace")[-LAST_WORDS:]
        said = " ".join(why)
        return ChildFailedError(f"{said}; the last words of its launcher:\n{words}")


@dataclass(slots=True)
class _Steps:
    """What is known of a worker's steps."""

    num_lines: int = 0
    """Of its file, that have been read."""
    steps: list[tuple[float, float]] = field(default_factory=list)


class _Growing:
    """A file of lines to which processes append. Each line is read once.

    Args:
        path: It may be made later.
    """

    def __init__(self, path: Path) -> None:
        self.lines: list[str] = []
        self._path = path
        self._offset = 0

    def read(self) -> None:
        """Take in the whole lines that have come."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        if newline:
            self.lines += whole.decode(errors="replace").split("\n")
