"""Seconds from a pserver's death until training goes on: ``python benchmarks/recovery.py``.

``paramfleet launch`` runs a job whose pservers keep their training on a disk; they are killed,
one after the other. See README.md beside this file.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Suite, run_script, suite_of
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.restarts import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    NEW_COUNT_S,
    Restarts,
)
from peer.children import ChildFailedError
from rounds import Ratio, Turns

__all__ = ["Kill", "kill_of", "measure"]

BUDGET_S = 420.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

WORKERS, SERVERS = 2, 2

METHOD = f"""\
A job of {WORKERS} workers and {SERVERS} pservers under `paramfleet launch --data-dir`,
durability async: 1,000,000 rows of 16 floats with Adagrad, steps of 8192 rows in turns, async
mode, one torch thread a worker, nothing pinned. After some seconds of training, which chance
chooses, a pserver is killed by SIGKILL, and then the other one in the next round. A recovery is
the time from the kill until each worker has ended a step that it began after the death. The
launcher waits {FIRST_BACKOFF_S:g} s before the first start of a pserver, and up to
{MAX_BACKOFF_S:g} s if it was started less than {NEW_COUNT_S:g} s ago, as those that this
benchmark kills mostly are: what is longer than {FIRST_BACKOFF_S:g} s by its rule isn't counted;
waited_s has it. Parts: start, until the first line of the script runs; imports, torch among
them; join, until the process is a member; replay, the snapshot and the log behind it; open,
until it serves; return, until the last worker has ended its step. cpu_s is the new process's
processor time, which other work of the machine affects least; what it restores and replays is
in it. Between rounds the workers hold, so that the machine is free. A percentile of fewer than
100 recoveries is near their worst."""

READY_WITHIN_S = 180.0
"""Until all rows are there, and until the job has ended; on however busy a machine."""

BACK_WITHIN_S = 90.0
"""Until a step has ended after a kill."""

HELD_S = 0.6
"""So long nobody steps, and no snapshot is taken, before a round ends."""

MIN_TRAINING_S, MAX_TRAINING_S = 2.0, 5.0
"""Training before a kill: the log behind the snapshot is as long as chance makes it."""

POLL_S = 0.01

MOST_RESTARTS = 1_000_000
"""Of one pserver in a row."""

PARTS = ("start", "imports", "join", "replay", "open", "return")

_TINY = ("--ids=2048", "--batch=256")
_TINY_KILLS = 2


@dataclass(frozen=True, slots=True)
class Kill:
    """A recovery, in seconds."""

    total_s: float
    """Without what the launcher waited longer than before a first start."""
    waited_s: float
    """That."""
    parts: dict[str, float]
    """Of the total, by ``PARTS``."""
    replayed_mb: float
    """Of the log behind the snapshot."""
    imports_cpu_s: float
    """Processor time of the process that took over until it had imported all."""
    open_cpu_s: float
    """The same until it served."""


def kill_of(
    killed: float, waited_s: float, pserver: Sequence[dict[str, Any]], steps: Sequence[float]
) -> Kill:
    """Return a recovery from notes.

    Args:
        killed: When.
        waited_s: What the launcher waited longer than before a first start.
        pserver: Notes of the process that took over.
        steps: When each worker had ended a step.
    """
    at = {note["event"]: note["at"] for note in pserver}
    recovered = next(note for note in pserver if note["event"] == "pserver.recovered")
    replay_s = recovered["seconds"]
    parts = {
        "start": at["began"] - killed - waited_s,
        "imports": at["imported"] - at["began"],
        "join": at["job.joined"] - at["imported"],
        "replay": replay_s,
        "open": at["pserver.serving"] - at["job.joined"] - replay_s,
        "return": max(steps) - at["pserver.serving"],
    }
    used = {note["event"]: note.get("cpu_s", 0.0) for note in pserver}
    return Kill(
        max(steps) - killed - waited_s,
        waited_s,
        parts,
        replayed_mb=recovered["bytes_since_snapshot"] / 1e6,
        imports_cpu_s=used["imported"],
        open_cpu_s=used["pserver.serving"],
    )


class _Job:
    """The job and the notes of its processes.

    Args:
        folder: For notes, logs and data.
        options: Of the training.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        self._log = folder / "launch.log"
        self._data = folder / "data"
        self._restarts = Restarts(MOST_RESTARTS)
        script = Path(__file__).parent / "work" / "recovering.py"
        command = [
            *(sys.executable, "-m", "paramfleet_worker", "launch"),
            *(f"--worker_num={WORKERS}", f"--server_num={SERVERS}"),
            *(f"--data-dir={self._data}", f"--max-restarts={MOST_RESTARTS}"),
            *(f"--log-dir={folder / 'log'}", str(script), f"--folder={folder}", *options),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=read_environment(),
                start_new_session=True,
            )

    def wait_ready(self, num_steps: int) -> None:
        """Wait until the workers together have taken so many steps.

        Raises:
            ChildFailedError: if they don't.
        """

        def is_ready() -> bool:
            steps = [self._steps(rank) for rank in range(WORKERS)]
            return all(steps) and sum(map(len, steps)) >= num_steps

        self._wait(is_ready, READY_WITHIN_S, "the first steps")

    def hold(self) -> None:
        """Let nobody step; return when no snapshot is taken either.

        Raises:
            ChildFailedError: if that doesn't come.
        """
        (self._folder / "hold").touch()
        quiet_since = time.perf_counter()

        def is_quiet() -> bool:
            nonlocal quiet_since
            now = time.perf_counter()
            stepped = max((end for r in range(WORKERS) for _, end in self._steps(r)), default=0)
            if any(self._data.glob("*/*/*/*.draft")):
                quiet_since = now
            return now - max(quiet_since, stepped) > HELD_S

        self._wait(is_quiet, BACK_WITHIN_S, "a pause")

    def release(self) -> None:
        """Let the workers step."""
        (self._folder / "hold").unlink(missing_ok=True)

    def kill(self, server: int) -> Kill:
        """Kill a pserver, and wait until all workers have stepped with the next one.

        Raises:
            ChildFailedError: if they don't.
        """
        notes = self._life(server)
        pid = int(notes[0]["pid"])
        descriptor = os.pidfd_open(pid)
        try:
            killed = time.perf_counter()
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not select.select([descriptor], [], [], BACK_WITHIN_S)[0]:
                raise self._failure("the pserver doesn't die")
        finally:
            os.close(descriptor)
        died = time.perf_counter()
        waited_s = self._backoff_s(server, died) - FIRST_BACKOFF_S

        def ends() -> list[float]:
            later = ([e for b, e in self._steps(r) if b >= died] for r in range(WORKERS))
            return [min(each) for each in later if each]

        self._wait(lambda: len(ends()) == WORKERS, BACK_WITHIN_S, "a step after the kill")
        return kill_of(killed, waited_s, self._life(server), ends())

    def _backoff_s(self, server: int, now: float) -> float:
        """Return for how long the launcher waits before the start of a pserver that died."""
        name = ProcessName("pserver", server)
        self._restarts.note_death(name, now)
        self._restarts.grant(name, now)
        due = self._restarts.next_due()
        assert due is not None, "it was granted"
        self._restarts.take_due(due)
        return due - now

    def end(self) -> None:
        """Let the training end.

        Raises:
            ChildFailedError: if it doesn't end well.
        """
        self.release()
        (self._folder / "end").touch()
        self._wait(lambda: self._process.poll() is not None, READY_WITHIN_S, "the end")
        if self._process.returncode:
            raise self._failure("the job failed")

    def stop(self) -> None:
        """End all its processes, if they haven't ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(15.0)
                except subprocess.TimeoutExpired:
                    continue

    def _life(self, server: int) -> list[dict[str, Any]]:
        """Return the notes of a pserver's newest process."""
        notes = self._notes(f"pserver-{server}")
        begins = [place for place, note in enumerate(notes) if note["event"] == "began"]
        return notes[begins[-1] :]

    def _steps(self, rank: int) -> list[tuple[float, float]]:
        """Return when a worker's newest steps began and ended."""
        notes = self._notes(f"worker-{rank}")
        return [(note["began"], note["at"]) for note in notes if note["event"] == "step"]

    def _notes(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / name
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        return [json.loads(line) for line in whole.splitlines()]

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
        words = self._log.read_text(errors="replace")[-2000:]
        said = " ".join(why)
        return ChildFailedError(f"{said}; the last words of its launcher:\n{words}")


@contextmanager
def _running(options: Sequence[str]) -> Iterator[_Job]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        job = _Job(Path(folder), options)
        try:
            yield job
            job.end()
        finally:
            job.stop()


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure recoveries for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    begun, chance = time.perf_counter(), random.Random(1)
    kills: list[Kill] = []
    with _running(_TINY if quick else ()) as job:
        job.wait_ready(16 if quick else 250)
        job.hold()
        left_s = budget_s - (time.perf_counter() - begun)
        turns = Turns(
            ["kill"], budget_s=left_s, max_rounds=_TINY_KILLS if quick else 1000, enough=200
        )
        for number, _ in enumerate(turns):
            job.release()
            threading.Event().wait(
                0.2 if quick else chance.uniform(MIN_TRAINING_S, MAX_TRAINING_S)
            )
            kills.append(job.kill(number % SERVERS))
            job.hold()
    return _suite(turns, kills)


def _suite(turns: Turns, kills: Sequence[Kill]) -> Suite:
    totals = [kill.total_s for kill in kills]
    kept = turns.kept(kills)

    def row(name: str, values: Sequence[float]) -> dict[str, Any]:
        return {"figure": name, "median": Ratio.of(values), "recoveries": len(values)}

    return suite_of(
        "recovery",
        rows=[
            row("recovery_s", [kill.total_s for kill in kept]),
            *(row(f"{part}_s", [kill.parts[part] for kill in kept]) for part in PARTS),
            row("cpu_s until imported", [kill.imports_cpu_s for kill in kept]),
            row("cpu_s until it served", [kill.open_cpu_s for kill in kept]),
            row("replayed_mb", [kill.replayed_mb for kill in kept]),
            row("waited_s", [kill.waited_s for kill in kept]),
        ],
        headlines={
            "recovery_p50_s": turns.headline(totals, quantile=0.5),
            "recovery_p99_s": turns.headline(totals, quantile=0.99),
            "recovery_cpu_s": turns.headline([kill.open_cpu_s for kill in kills]),
        },
        method=METHOD,
        turns={"kills": turns},
        details={"recoveries_s": totals},
    )


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
