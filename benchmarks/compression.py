"""What a narrower wire saves, and what it costs: ``python benchmarks/compression.py``.

Wide and deep on the flights, and on Criteo's clicks where they are, each a whole job of 2
pservers and 2 workers for one epoch, in async and GEO, once with each wire dtype. See
README.md beside this file.
"""

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from harness import Suite, run_script
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from rounds import Ratio, in_turns

__all__ = ["Case", "measure", "rows_of", "summary_of"]

BUDGET_S = 90.0
QUICK_S = 20.0
"""A smaller budget trains on few examples: it shows that everything works, and no loss."""

WIRES = ("float32", "float16", "bfloat16", "int8")
REPEATED = ("float32", "bfloat16", "int8")
"""Trained with every seed, for the headlines; float16 with the first alone."""
MODES = ("async", "geo")
ROWS = {"flights": 40_000, "criteo": 0}
"""Examples to train on; 0 for all."""
QUICK_ROWS = 8_000
MAX_SEEDS = 10
NUM_WORKERS = 2
DATA_DIR = Path(__file__).parents[1] / ".." / "shared" / "data"

METHOD = """\
2 workers + 2 pservers train wide and deep (Adagrad, batches of 256; GEO with k_steps 10,
waiting for each exchange and for each other) for one epoch: flights (rows of 8 and 1, hashed
ids) and criteo1tb (50,000 clicks, rows of 16 and 1, Criteo's own ids; 10,000 held out).
auc_loss is the AUC of float32 less that of the wire dtype, of runs with the same seed: its
mean over the seeds, with the standard error of it. bytes_ratio is the bytes of a step over
those of float32: whole bodies of requests and answers of worker 0, headers, ids and dense
parameters included. cpu_ms_per_step is the processor time of all processes of a job, from
their start to their end, over the steps of both workers, and cpu_ratio is over that of
float32. None of these is a time by the clock: no round is left out, and no headline refused.
wire_*_auc_loss is the largest mean loss of all data and modes, wire_*_bytes_ratio the largest
ratio."""


class Case(NamedTuple):
    """What a job trains, and how."""

    data: str
    mode: str
    wire: str

    @property
    def name(self) -> str:
        """Return it as one word."""
        return "/".join(self)


Found = dict[Case, dict[int, dict[str, float]]]
"""By case and seed: what a job answered."""


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Train every case with one seed after the other for about ``budget_s`` seconds."""
    found: Found = {}
    rows = dict.fromkeys(ROWS, QUICK_ROWS) if budget_s < QUICK_S else ROWS
    with (
        tempfile.TemporaryDirectory() as folder,
        _redis(Path(folder)) as redis,
        _jobs(Path(folder)) as jobs,
    ):
        about = json.loads(jobs.readline())
        every = itertools.product(about["data"], MODES, WIRES)
        cases = {case.name: case for case in map(Case._make, every)}
        turns = in_turns(list(cases), budget_s=budget_s, max_rounds=MAX_SEEDS)
        for number, name in enumerate(turns):
            case, seed = cases[name], number // len(cases)
            if seed and case.wire not in REPEATED:
                continue
            asked = {**case._asdict(), "seed": seed, "rows": rows[case.data]}
            asked |= {"job": f"narrow{number}", "redis": redis}
            found.setdefault(case, {})[seed] = jobs.ask(asked)
    table = rows_of(found)
    missing = f" Criteo's clicks were left out: {about['missing']}." if about["missing"] else ""
    return {
        "benchmark": "compression",
        "rows": table,
        "summary": summary_of(table),
        "method": METHOD + missing,
        "details": {"seeds": max(map(len, found.values()))},
    }


def rows_of(found: Found) -> list[dict[str, Any]]:
    """Return a record of each case, beside float32 of the same data, mode and seed."""
    records = []
    for case, runs in found.items():
        plain = found[case._replace(wire="float32")]
        losses = [plain[seed]["auc"] - run["auc"] for seed, run in runs.items()]
        ratios = [
            run["bytes_per_step"] / plain[seed]["bytes_per_step"] for seed, run in runs.items()
        ]
        cpu_ratios = [run["cpu_s"] / plain[seed]["cpu_s"] for seed, run in runs.items()]
        error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None
        records.append(
            {
                **case._asdict(),
                "auc": statistics.mean(run["auc"] for run in runs.values()),
                "auc_loss": statistics.mean(losses),
                "standard_error": error,
                "losses": [round(loss, 5) for loss in losses],
                "bytes_per_step": statistics.mean(r["bytes_per_step"] for r in runs.values()),
                "bytes_ratio": list(Ratio.of(ratios)),
                "cpu_ms_per_step": statistics.mean(
                    1e3 * run["cpu_s"] / (NUM_WORKERS * run["steps"]) for run in runs.values()
                ),
                "cpu_ratio": list(Ratio.of(cpu_ratios)),
            }
        )
    return records


def summary_of(records: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the worst of all data and modes."""
    summary: dict[str, float | None] = {}
    for short, wire in (("bf16", "bfloat16"), ("int8", "int8")):
        mine = [record for record in records if record["wire"] == wire]
        summary[f"wire_{short}_auc_loss"] = max(record["auc_loss"] for record in mine)
        summary[f"wire_{short}_bytes_ratio"] = max(r["bytes_ratio"][0] for r in mine)
    return summary


class _Jobs:
    """The process that runs jobs; see ``work/narrow_jobs.py``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def readline(self) -> str:
        """Return its next line.

        Raises:
            RuntimeError: if it has ended; its standard error says why.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("work/narrow_jobs.py ended early")
        return line

    def ask(self, case: Mapping[str, Any]) -> dict[str, float]:
        """Run a job and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self.readline())
        return found


@contextmanager
def _jobs(folder: Path) -> Iterator[_Jobs]:
    given = read_environment().get("PARAMFLEET_DATA")
    data_dir = Path(given) if given else DATA_DIR
    script = Path(__file__).parent / "work" / "narrow_jobs.py"
    command = [sys.executable, str(script), f"--folder={folder}"]
    if data_dir.is_dir():
        command.append(f"--data-dir={data_dir}")
    env = {**read_environment(), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        tied(command), stdin=pipe, stdout=pipe, text=True, env=env
    ) as process:
        try:
            yield _Jobs(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    redis = EmbeddedRedis(folder, clock=SystemClock())
    asyncio.run(redis.start())
    try:
        yield redis.url
    finally:
        redis.stop()


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
