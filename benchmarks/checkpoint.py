"""What a checkpoint beside the training costs: ``python benchmarks/checkpoint.py``.

``paramfleet launch`` runs a job that saves itself, whole and what changed since. See README.md
beside this file.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import Suite, run_script, suite_of
from launched import LaunchedJob
from rounds import Ratio, Turns

__all__ = ["figures_of", "measure"]

BUDGET_S = 420.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

WORKERS, SERVERS = 2, 2

METHOD = f"""\
A job of {WORKERS} workers and {SERVERS} pservers under `paramfleet launch`: 10,000,000 rows
of 16 floats with Adagrad, steps of 8192 ids, async mode, one torch thread a worker, nothing
pinned. Worker 0 begins a checkpoint between two steps, and both train while it is written.
checkpoint_vs_disk is its bytes a second, from then until it has its name, over those of `dd
conv=fdatasync` of zeros into the same folder, the mean of one before and one after the round,
while nobody saves or trains. checkpoint_pause_ms is worker 0's longest step meanwhile, that
in which it began included; longest_ms is its longest one of the windows before and after.
checkpoint_slowdown is the steps a second of these windows over those meanwhile, 1 for no
cost; bare_slowdown is the same while, instead of a checkpoint, one process of niceness 10
hashes and writes as many bytes, and bare_pause_ms its longest step. Then the workers take
their ids from the first hundredth, a whole checkpoint is written and, after a window, the
rows that changed since: increment_bytes and increment_time are its share of the whole one.
The disk is that of the folder for temporary files (TMPDIR)."""

READY_WITHIN_S = 600.0
"""Until all rows are there, a round is over, or the job has ended; however busy it is."""

DD_BLOCK = 8 << 20
_SYNCED = "conv=fdatasync"

FIGURES = (
    "vs_disk",
    "pause_ms",
    "slowdown",
    "bare_slowdown",
    "increment_bytes",
    "increment_time",
)

_TINY = ("--ids=20000", "--batch=256", "--window=0.3")


def figures_of(found: dict[str, Any], disk: Sequence[float]) -> dict[str, float]:
    """Return a round's figures, by ``FIGURES``.

    Args:
        found: What the job says of it.
        disk: Bytes a second of the disk, before and after it.
    """
    rate = found["bytes"] / found["seconds"]
    return {
        "vs_disk": rate / (sum(disk) / len(disk)),
        "pause_ms": found["pause_ms"],
        "slowdown": found["plain_steps_per_s"] / found["steps_per_s"],
        "bare_slowdown": found["plain_steps_per_s"] / found["bare_steps_per_s"],
        "increment_bytes": found["increment_bytes"] / found["bytes"],
        "increment_time": found["increment_seconds"] / found["seconds"],
    }


class _Job(LaunchedJob):
    """The job and what it says.

    Args:
        folder: For notes, logs and checkpoints.
        options: Of the training.
    """

    ended_within_s = READY_WITHIN_S

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._num_rounds = 0
        super().__init__(
            folder,
            launch=[f"--worker_num={WORKERS}", f"--server_num={SERVERS}"],
            script="saving.py",
            options=options,
        )

    def wait_ready(self) -> None:
        """Wait until every row is there.

        Raises:
            ChildFailedError: if that doesn't come.
        """
        ready = [self._folder / f"ready-{rank}" for rank in range(WORKERS)]
        self._wait(
            lambda: all(each.exists() for each in ready), READY_WITHIN_S, "the first steps"
        )

    def round(self) -> dict[str, Any]:
        """Save once whole and once what changed; return what the job says of it.

        Raises:
            ChildFailedError: if it doesn't, or a checkpoint failed.
        """
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        (self._folder / f"go-{number}").touch()
        self.release()
        self._wait(lambda: len(self._lines("rounds")) > number, READY_WITHIN_S, "a round")
        self.hold()
        found = self._notes("rounds")[number]
        if found["errors"] or not found["incremental"]:
            raise self._failure("a checkpoint isn't what it was to be:", str(found))
        for path in self._folder.glob(f"{number}-*"):
            shutil.rmtree(path)
        return found


@contextmanager
def _running(options: Sequence[str]) -> Iterator[tuple[_Job, Path]]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        job = _Job(Path(folder), options)
        try:
            yield job, Path(folder)
            job.end()
        finally:
            job.stop()


def _disk_rate(folder: Path, num_bytes: int) -> float:
    """Return the bytes a second that ``dd conv=fdatasync`` writes into a folder."""
    target, count = folder / "dd", max(1, num_bytes // DD_BLOCK)
    began = time.perf_counter()
    subprocess.run(
        [
            "dd",
            "if=/dev/zero",
            f"of={target}",
            f"bs={DD_BLOCK}",
            f"count={count}",
            "conv=fdatasync",
        ],
        check=True,
        capture_output=True,
    )
    seconds = time.perf_counter() - began
    target.unlink()
    return count * DD_BLOCK / seconds


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure checkpoints for about ``budget_s`` seconds."""
    quick = budget_s < QUICK_S
    begun, num_bytes = time.perf_counter(), (16 << 20) if quick else (1 << 30)
    found: list[dict[str, Any]] = []
    disks: list[float] = []
    with _running(_TINY if quick else ()) as (job, folder):
        job.wait_ready()
        job.hold()
        disks.append(_disk_rate(folder, num_bytes))
        left_s = budget_s - (time.perf_counter() - begun)
        turns = Turns(["save"], budget_s=left_s, max_rounds=1 if quick else 100)
        for _ in turns:
            found.append(job.round())
            disks.append(_disk_rate(folder, num_bytes))
    return _suite(turns, found, disks)


def _suite(turns: Turns, found: Sequence[dict[str, Any]], disks: Sequence[float]) -> Suite:
    figures = [figures_of(each, disks[place : place + 2]) for place, each in enumerate(found)]

    def row(name: str, values: Sequence[float]) -> dict[str, Any]:
        return {"figure": name, "median": Ratio.of(turns.kept(values)), "rounds": len(values)}

    said = (
        "seconds", "held_ms", "longest_ms", "increment_seconds",
        "bare_seconds", "bare_pause_ms",
    )  # fmt: skip
    return suite_of(
        "checkpoint",
        rows=[
            *(row(name, [each[name] for each in figures]) for name in FIGURES),
            *(row(name, [each[name] for each in found]) for name in said),
            row("MB/s", [each["bytes"] / 1e6 / each["seconds"] for each in found]),
            row("MB", [each["bytes"] / 1e6 for each in found]),
            row("increment_mb", [each["increment_bytes"] / 1e6 for each in found]),
        ],
        headlines={
            f"checkpoint_{name}": turns.headline([each[name] for each in figures])
            for name in FIGURES
        },
        method=METHOD,
        turns={"saves": turns},
        details={"disk_bytes_per_s": list(disks)},
    )


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
