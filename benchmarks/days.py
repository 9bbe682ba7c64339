"""What eviction costs a training of thirty days: ``python benchmarks/days.py``.

A stream of made-up days with ten slots whose ids drift is trained twice, one after the other:
once all rows stay, once a table has so many at most. Each day is predicted before it is
trained. The last line is JSON: the mean AUC of the last ten days of both, rows and the
pservers' memory, and how many rows went beside what the dry run of each day had said.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goodput import members_of, sample_of
from launched import LaunchedJob
from paramfleet_shared.settings.config import read_environment
from paramfleet_worker.app.finding import find_job
from paramfleet_worker.app.operating import operator_of
from peer.children import ChildFailedError

SERVERS = WORKERS = 2
DAY_WITHIN_S = 600.0
LAST_DAYS = 10
FLAT_DAYS = 15
"""Of the last ones, over which memory is to be flat."""


@dataclass(slots=True)
class Run:
    """One training."""

    auc: list[float] = field(default_factory=list)
    """Of each day, before it was trained."""
    rows: list[int] = field(default_factory=list)
    """Of all tables, at the end of each day."""
    memory_mb: list[float] = field(default_factory=list)
    """Of the pservers' own, at the end of each day."""
    would: int = 0
    gone: int = 0


def run(options: argparse.Namespace, evict: dict[str, Any]) -> Run:
    """Train once."""
    done = Run()
    with tempfile.TemporaryDirectory(prefix="paramfleet-days-") as folder:
        name = f"days-{Path(folder).name[-8:].lower().replace('_', '-')}"
        launched = LaunchedJob(
            Path(folder),
            launch=(f"--server_num={SERVERS}", f"--worker_num={WORKERS}", f"--job={name}"),
            script="drifting.py",
            options=(
                f"--mode={options.mode}",
                f"--days={options.days}",
                f"--samples={options.samples}",
                f"--alive={options.alive}",
                f"--new={options.new}",
                f"--evict={json.dumps(evict)}",
            ),
        )
        try:
            for day in range(options.days):
                note = _note_of(launched, Path(folder) / "worker-0", day)
                done.auc.append(note["auc"])
                done.would += sum(note["would"].values())
                done.gone += sum(note["gone"].values())
                done.rows.append(_rows_of(name))
                done.memory_mb.append(memory_mb(launched.pid))
                print(
                    f"day {day}: auc {done.auc[-1]:.4f}, rows {done.rows[-1]:,}, "
                    f"pservers {done.memory_mb[-1]:.1f} MB, gone {note['gone']}",
                    file=sys.stderr,
                    flush=True,
                )
            launched.finish()
        finally:
            launched.stop()
    return done


def _note_of(launched: LaunchedJob, path: Path, day: int) -> dict[str, Any]:
    """Return what worker 0 says at the end of a day.

    Raises:
        ChildFailedError: if the job has failed.
        TimeoutError: if the day takes too long.
    """
    pause = threading.Event()
    for _ in range(int(DAY_WITHIN_S / 0.05)):
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) > day:
            note: dict[str, Any] = json.loads(lines[day])
            return note
        launched.demand_alive()
        pause.wait(0.05)
    message = f"day {day} took longer than {DAY_WITHIN_S:.0f} s"
    raise TimeoutError(message)


def _rows_of(job: str) -> int:
    """Return the rows of all tables on all pservers."""
    found = find_job({"job": job, "redis": None}, read_environment(), url="")
    tables = operator_of(found).get("tables")
    return sum(int(table["rows"]) for table in tables if table["kind"] == "sparse")


def memory_mb(launcher: int) -> float:
    """Return the memory that is the pservers' alone.

    Raises:
        ChildFailedError: if the launcher has none.
    """
    pservers = [pid for pid, role in members_of(launcher) if role == "pserver"]
    if not pservers:
        message = f"process {launcher} has no pservers"
        raise ChildFailedError(message)
    return sum(sample_of(pid).num_bytes for pid in pservers) / 1e6


def summary_of(options: argparse.Namespace, plain: Run, evicts: Run) -> dict[str, Any]:
    """Return the last line."""
    last = min(LAST_DAYS, options.days)
    kept, bounded = (statistics.mean(each.auc[-last:]) for each in (plain, evicts))
    flat = evicts.memory_mb[-min(FLAT_DAYS, options.days) :]
    return {
        "days": options.days,
        "samples_a_day": options.samples,
        "max_rows": options.max_rows,
        "auc_all_rows": round(kept, 5),
        "auc_evicting": round(bounded, 5),
        "auc_gap": round(kept - bounded, 5),
        "rows_all": plain.rows[-1],
        "rows_evicting_most": max(evicts.rows),
        "memory_flat_mb": [round(min(flat), 1), round(max(flat), 1)],
        "memory_all_mb": [round(plain.memory_mb[0], 1), round(plain.memory_mb[-1], 1)],
        "dry_run": evicts.would,
        "gone": evicts.gone,
    }


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--samples", type=int, default=60_000, help="of a day")
    parser.add_argument("--alive", type=int, default=4_000, help="ids of a slot at once")
    parser.add_argument("--new", type=float, default=0.1, help="part that is new each day")
    parser.add_argument("--max-rows", type=int, default=100_000, help="of each of two tables")
    options = parser.parse_args()
    plain = run(options, {})
    evicts = run(options, {"max_rows": options.max_rows, "every_steps": 150})
    print(json.dumps(summary_of(options, plain, evicts)))


if __name__ == "__main__":
    main()
