"""Seconds from a pserver's death until training goes on: ``python benchmarks/recovery.py``.

``paramfleet launch`` runs a job whose pservers keep their training on a disk; they are killed,
one after the other. See README.md beside this file.
"""

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from conditions import MIN_ROUNDS, Headline
from harness import Suite, run_script, suite_of
from launched import LaunchedJob
from rounds import Ratio, Turns

__all__ = [
    "SERVERS",
    "WORKERS",
    "Event",
    "Kill",
    "RecoveringJob",
    "kill_of",
    "lives_of",
    "measure",
    "running",
]

BUDGET_S = 420.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

WORKERS, SERVERS = 2, 2

METHOD = f"""\
A job of {WORKERS} workers and {SERVERS} pservers under `paramfleet launch --data-dir`,
durability async: 1,000,000 rows of 16 floats with Adagrad, steps of 8192 rows in turns, async
mode, one torch thread a worker, nothing pinned. After some seconds of training, which chance
chooses, a pserver is killed by SIGKILL, and then the other one in the next round. A recovery is
the time from the kill until each worker has ended a step that it began after the death. Parts:
start, until the new process has imported what it needs, which all but the first
have done before the death (a standby process); join, until it is a member; replay, the
snapshot and the log behind it; open, until it serves; return, until the last worker has ended
its step. They are from the pservers' logs. cpu_s is the new process's processor time, which
other work of the machine affects least; what it restores and replays is in it. Between rounds
workers hold, so that the machine is free. sync_loss_gap is the greatest relative difference
between a loss of a small sync job whose pservers are killed, in the same run, and that of a
job without deaths. A percentile of fewer than 100 recoveries is near their worst."""

READY_WITHIN_S = 180.0
"""Until all rows are there, and until the job has ended; on however busy a machine."""

BACK_WITHIN_S = 90.0
"""Until a step has ended after a kill."""


MIN_TRAINING_S, MAX_TRAINING_S = 2.0, 5.0
"""Training before a kill: the log behind the snapshot is as long as chance makes it."""


MOST_RESTARTS = 1_000_000
"""Of one pserver in a row."""

PARTS = ("start", "join", "replay", "open", "return")

_SYNC_STEPS, _TINY_SYNC_STEPS = 200, 80
_SYNC = ("--sync", "--ids=4096", "--batch=256")
"""A job whose losses are the same in each run, whatever is killed."""

_TINY = ("--ids=2048", "--batch=256")
_TINY_KILLS = 2


@dataclass(frozen=True, slots=True)
class Kill:
    """A recovery, in seconds."""

    total_s: float
    parts: dict[str, float]
    """Of the total, by ``PARTS``."""
    replayed_mb: float
    """Of the log behind the snapshot."""
    start_cpu_s: float
    """Processor time of the process that took over until it had imported all."""
    open_cpu_s: float
    """The same until it served."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a pserver's log."""

    at: float
    """In seconds since 1970."""
    fields: Mapping[str, Any]


def lives_of(log: str) -> list[dict[str, Event]]:
    """Return the events of each process of a pserver, the newest of each name, from its log.

    Args:
        log: Lines, of which those of the pserver are JSON objects.
    """
    lives: list[dict[str, Event]] = []
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if said["event"] == "job.joined":
            lives.append({})
        if lives:
            at = datetime.fromisoformat(said["time"]).timestamp()
            lives[-1][said["event"]] = Event(at, said["fields"])
    return lives


def kill_of(killed: float, life: Mapping[str, Event], steps: Sequence[float]) -> Kill:
    """Return a recovery from what was logged; times are in seconds since 1970.

    Args:
        killed: When.
        life: Events of the process that took over.
        steps: When each worker had ended a step.
    """
    started, served = life["pserver.started"], life["pserver.serving"]
    recovered = life["pserver.recovered"].fields
    joined = life["job.joined"].at
    imported = started.at - started.fields["seconds"]
    parts = {
        "start": imported - killed,
        "join": joined - imported,
        "replay": recovered["seconds"],
        "open": served.at - joined - recovered["seconds"],
        "return": max(steps) - served.at,
    }
    return Kill(
        max(steps) - killed,
        parts,
        replayed_mb=recovered["bytes_since_snapshot"] / 1e6,
        start_cpu_s=started.fields["cpu_s"],
        open_cpu_s=served.fields["cpu_s"],
    )


class RecoveringJob(LaunchedJob):
    """The job and the notes of its processes.

    Args:
        folder: For notes, logs and data.
        options: Of the training.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._data = folder / "data"
        self._since_1970_s = datetime.now(UTC).timestamp() - time.perf_counter()
        super().__init__(
            folder,
            launch=[
                *(f"--worker_num={WORKERS}", f"--server_num={SERVERS}"),
                *(f"--data-dir={self._data}", f"--max-restarts={MOST_RESTARTS}"),
            ],
            script="recovering.py",
            options=options,
            environment={"PARAMFLEET_LOG_FORMAT": "json"},
        )

    def wait_ready(self, num_steps: int) -> None:
        """Wait until the workers together have taken so many steps.

        Raises:
            ChildFailedError: if they don't.
        """
        self.wait_steps(num_steps, num_workers=WORKERS, within_s=READY_WITHIN_S)

    def kill(self, server: int) -> Kill:
        """Kill a pserver, and wait until all workers have stepped with the next one.

        Raises:
            ChildFailedError: if they don't.
        """
        pid = int(self._life(server)["pserver.started"].fields["pid"])
        killed, ends = self.kill_process(pid, num_workers=WORKERS, within_s=BACK_WITHIN_S)
        since = self._since_1970_s
        ended = [since + end for end in ends]
        return kill_of(since + killed, self._life(server), ended)

    def losses(self) -> list[float]:
        """Return the losses of all steps, worker by worker."""
        notes = [self._notes(f"worker-{rank}") for rank in range(WORKERS)]
        return [note["loss"] for each in notes for note in each if note["event"] == "step"]

    @override
    def end(self) -> None:
        self.release()
        super().end()

    def _life(self, server: int) -> dict[str, Event]:
        """Return what a pserver's newest process has logged."""
        log = (self._folder / "log" / f"serverlog.{server}").read_text(errors="replace")
        return lives_of(log.rpartition("\n")[0])[-1]

    @override
    def _is_at_work(self) -> bool:
        return any(self._data.glob("*/*/*/*.draft"))


@contextmanager
def running(options: Sequence[str]) -> Iterator[RecoveringJob]:
    """Run a job until the body ends."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        job = RecoveringJob(Path(folder), options)
        try:
            yield job
            job.end()
        finally:
            job.stop()


def loss_gap(*, deaths: int, steps: int) -> float:
    """Return by how much the losses of sync differ from those of a run without deaths.

    Args:
        deaths: Of pservers, in turns, each after some steps.
        steps: Of each worker.

    Raises:
        ChildFailedError: if a job fails.
    """
    found: list[list[float]] = []
    for kills in (0, deaths):
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
            job = RecoveringJob(Path(folder), [*_SYNC, f"--steps={steps}"])
            try:
                for number in range(kills):
                    job.wait_ready(WORKERS * (20 + 20 * number))
                    job.kill(number % SERVERS)
                job.finish()
                found.append(job.losses())
            finally:
                job.stop()
    assert len(found[0]) == len(found[1]) == WORKERS * steps, "each step has one"
    return max(abs(a - b) / abs(a) for a, b in zip(found[0], found[1], strict=True))


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure recoveries for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    begun, chance = time.perf_counter(), random.Random(1)
    kills: list[Kill] = []
    steps = _TINY_SYNC_STEPS if quick else _SYNC_STEPS
    gap = Headline([loss_gap(deaths=1 if quick else 4, steps=steps)], WORKERS * steps)
    with running(_TINY if quick else ()) as job:
        job.wait_ready(16 if quick else 250)
        job.hold()
        left_s = budget_s - (time.perf_counter() - begun)
        turns = Turns(
            ["kill"],
            budget_s=left_s,
            max_rounds=_TINY_KILLS if quick else 1000,
            enough=200,
            least=0 if quick else MIN_ROUNDS,
        )
        for number, _ in enumerate(turns):
            job.release()
            threading.Event().wait(
                0.2 if quick else chance.uniform(MIN_TRAINING_S, MAX_TRAINING_S)
            )
            kills.append(job.kill(number % SERVERS))
            job.hold()
    return _suite(turns, kills, gap)


def _suite(turns: Turns, kills: Sequence[Kill], gap: Headline) -> Suite:
    totals = [kill.total_s for kill in kills]
    kept = turns.kept(kills)

    def row(name: str, values: Sequence[float]) -> dict[str, Any]:
        return {"figure": name, "median": Ratio.of(values), "recoveries": len(values)}

    return suite_of(
        "recovery",
        rows=[
            row("recovery_s", [kill.total_s for kill in kept]),
            *(row(f"{part}_s", [kill.parts[part] for kill in kept]) for part in PARTS),
            row("cpu_s until imported", [kill.start_cpu_s for kill in kept]),
            row("cpu_s until it served", [kill.open_cpu_s for kill in kept]),
            row("replayed_mb", [kill.replayed_mb for kill in kept]),
            row("sync_loss_gap", gap.values),
        ],
        headlines={
            "recovery_p50_s": turns.headline(totals, quantile=0.5),
            "recovery_p99_s": turns.headline(totals, quantile=0.99),
            "recovery_cpu_s": turns.headline([kill.open_cpu_s for kill in kills]),
            "recovery_sync_loss_gap": gap,
        },
        method=METHOD,
        turns={"kills": turns},
        details={"recoveries_s": totals},
    )


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
