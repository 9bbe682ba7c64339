"""How long a group stands still while it moves, and while a follower takes it over.

``python benchmarks/moving.py`` runs a job whose groups have followers, scales it up and down,
and kills its pservers. See README.md beside this file.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import Suite, run_script, suite_of
from launched import LaunchedJob
from paramfleet_worker.app.finding import find_job
from paramfleet_worker.app.operating import Operator, operator_of
from rounds import Ratio, Turns

__all__ = ["measure", "pauses_of"]

BUDGET_S = 300.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

WORKERS, LEAST, MOST, GROUPS = 2, 2, 3, 4
JOB = "moving"

METHOD = f"""\
A job of {WORKERS} workers and {LEAST} pservers for {GROUPS} groups under `paramfleet launch
--replicas 1`, all in memory: 1,000,000 rows of 16 floats with Adagrad, async mode, nothing
pinned. In turns it is scaled to {MOST} pservers and back to {LEAST}, and a pserver is killed by
SIGKILL. The pause of a move is from when its owner executes nothing more until the next one
serves. A recovery is from the kill until each worker has ended a step that it began after the
death. Between rounds workers hold, so that the machine is free."""

READY_WITHIN_S = 180.0
SETTLED_WITHIN_S = 120.0
_TINY = ("--ids=2048", "--batch=256")


def pauses_of(fenced: Sequence[float], serving: Sequence[float]) -> list[float]:
    """Return for how long groups stood still: from each fence to the first serving after it."""
    after = (min((at for at in serving if at >= begun), default=None) for begun in fenced)
    return [end - begun for begun, end in zip(fenced, after, strict=True) if end is not None]


class _Event(NamedTuple):
    """What a pserver has logged."""

    name: str
    at: float
    """Seconds since 1970."""
    fields: Mapping[str, Any]


def _event_of(line: str) -> _Event:
    said = json.loads(line)
    at = datetime.fromisoformat(said["time"]).timestamp()
    return _Event(said["event"], at, said["fields"])


class _Job(LaunchedJob):
    """The job and the notes of its processes.

    Args:
        folder: For notes and logs.
        options: Of the training.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        super().__init__(
            folder,
            launch=[
                *(f"--worker_num={WORKERS}", f"--server_num={LEAST}:{GROUPS}"),
                *("--replicas=1", "--max-restarts=1000000", f"--job={JOB}"),
            ],
            script="recovering.py",
            options=options,
            environment={
                "PARAMFLEET_RUNTIME_DIR": str(folder / "run"),
                "PARAMFLEET_LOG_FORMAT": "json",
            },
        )

    def wait_ready(self, num_steps: int) -> None:
        """Wait until the workers together have taken so many steps, and all is copied.

        Raises:
            ChildFailedError: if they don't.
        """
        self.wait_steps(num_steps, num_workers=WORKERS, within_s=READY_WITHIN_S)
        self._wait(lambda: self._is_settled(LEAST), SETTLED_WITHIN_S, "followers")

    def scale(self, pservers: int) -> list[float]:
        """Have so many pservers; return the pauses of the moves.

        Raises:
            ChildFailedError: if the job ends, or they don't come.
        """
        began = datetime.now(UTC).timestamp()
        self._operator().post("scale", {"pservers": pservers})
        self._wait(lambda: self._is_settled(pservers), SETTLED_WITHIN_S, "the moves")
        events = [each for index in range(GROUPS) for each in self._events(index)]
        at = {
            name: [e.at for e in events if e.name == name and e.at > began]
            for name in ("group.fenced", "pserver.serving")
        }
        return pauses_of(at["group.fenced"], at["pserver.serving"])

    def kill(self, server: int) -> float:
        """Kill a pserver; return the seconds until all workers have stepped on.

        Raises:
            ChildFailedError: if they don't.
        """
        pid = [e.fields["pid"] for e in self._events(server) if e.name == "pserver.started"][-1]
        killed, ends = self.kill_process(pid, num_workers=WORKERS, within_s=SETTLED_WITHIN_S)
        self._wait(lambda: self._is_settled(LEAST), SETTLED_WITHIN_S, "a new follower")
        return max(ends) - killed

    def _is_settled(self, processes: int) -> bool:
        """Return whether so many pservers share the groups, and all are followed."""
        plan = self._operator().get("status")["plan"]
        alive = [each for each in plan["processes"] if each["alive"]]
        loads = [len(each["groups"]) for each in alive]
        even = len(alive) == processes and max(loads) - min(loads) <= 1
        followed = all(each["protected"] for each in plan["groups"])
        return even and followed and plan["moving"] is None

    def _operator(self) -> Operator:
        """Return a client of the coordinator's admin API."""
        found = find_job({"job": JOB, "redis": None}, self._environment)
        return operator_of(found)

    def _events(self, server: int) -> list["_Event"]:
        """Return what all processes of a pserver have logged."""
        lines = self._lines(f"log/serverlog.{server}")
        return [_event_of(line) for line in lines if line.startswith("{")]


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure moves and takeovers for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    begun = time.perf_counter()
    pauses: list[float] = []
    kills: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        job = _Job(Path(folder), _TINY if quick else ())
        try:
            job.wait_ready(16 if quick else 250)
            job.hold()
            left_s = budget_s - (time.perf_counter() - begun)
            most = 1 if quick else 1000
            turns = Turns(["round"], budget_s=left_s, max_rounds=most, enough=200)
            longest: list[float] = []
            for number, _ in enumerate(turns):
                job.release()
                moved = [*job.scale(MOST), *job.scale(LEAST)]
                pauses += moved
                longest.append(max(moved) * 1000)
                kills.append(job.kill(number % LEAST))
                job.hold()
            job.release()
            job.end()
        finally:
            job.stop()
    return _suite(turns, pauses, longest, kills)


def _suite(
    turns: Turns, pauses: Sequence[float], longest: Sequence[float], kills: Sequence[float]
) -> Suite:
    milliseconds = [1000 * pause for pause in pauses]
    rows: list[dict[str, Any]] = [
        {"figure": "move_pause_ms", "median": Ratio.of(milliseconds), "moves": len(pauses)},
        {"figure": "recovery_replica_s", "median": Ratio.of(kills), "moves": len(kills)},
    ]
    return suite_of(
        "moving",
        rows=rows,
        headlines={
            "move_pause_ms": turns.headline(longest),
            "recovery_replica_p50_s": turns.headline(kills, quantile=0.5),
            "recovery_replica_p99_s": turns.headline(kills, quantile=0.99),
        },
        method=METHOD,
        turns={"rounds": turns},
        details={"pauses_ms": milliseconds, "median_pause_ms": median(milliseconds)},
    )


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
