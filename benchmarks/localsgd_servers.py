"""How much a slow worker delays the others: ``python benchmarks/localsgd_servers.py``.

Two workers and a third that is as fast, or five times slower, train by LocalSGD over a
pserver, and in sync. See README.md beside this file.
"""

import asyncio
import sys
from typing import Any

from harness import Suite, run_script
from jobs import JobShape, TrainingJob, run_jobs, training_jobs
from rounds import Ratio, in_turns

__all__ = ["measure"]

BUDGET_S = 55.0
SLOW = 5.0
"""How many times as long the slow worker's steps take."""

STEPS = {"localsgd": 80, "sync": 16}
"""Of a fast worker in a window, by mode."""

METHOD = f"""\
Steps/s of worker 0 of a job of three workers and a pserver, whose third worker is as fast as
the others or has steps of {SLOW:g} times the length. Windows of both are taken in turns on one
warm job, and a delay is of two windows of one round: how much longer worker 0's steps take
beside the slow one. A step computes for less than 1 ms and sleeps 12 ms, so that the workers
share the cores and yet hardly wait for one: on a busy machine the slow worker leaves the others
more of the cores than a fast one does, and a delay can be below 0. localsgd: k_steps 8, 25,000
float32 values to and fro in an exchange. In sync every step waits for the slowest, which is
what the figure is to be compared with."""


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure both modes for about ``budget_s`` seconds."""
    rows = run_jobs(_measure(budget_s))
    delays = {row["mode"]: row["delay_percent"][0] for row in rows}
    return {
        "benchmark": "localsgd_servers",
        "rows": rows,
        "summary": {
            "slow_worker_delay_percent": delays["localsgd"],
            "slow_worker_delay_percent_sync": delays["sync"],
        },
        "method": METHOD,
    }


async def _measure(budget_s: float) -> list[dict[str, Any]]:
    now = asyncio.get_running_loop().time
    begun = now()
    shapes = [JobShape(script="paced", mode=mode, workers=3, pinned=False) for mode in STEPS]
    found: dict[tuple[str, float], list[float]] = {
        (mode, slow): [] for mode in STEPS for slow in (1.0, SLOW)
    }
    async with training_jobs(shapes, warm_steps=16) as running:
        jobs = dict(zip(STEPS, running, strict=True))
        left_s = budget_s - (now() - begun)
        cases = {f"{mode} {slow:g}": (mode, slow) for mode, slow in found}
        for name in in_turns(list(cases), budget_s=left_s):
            mode, slow = cases[name]
            found[mode, slow].append(await _rate(jobs[mode], STEPS[mode], slow))
    return [_row(mode, found[mode, 1.0], found[mode, SLOW]) for mode in STEPS]


async def _rate(job: TrainingJob, steps: int, slow: float) -> float:
    figures = await job.window(steps=steps, slow=slow)
    return figures["steps_per_s"]


def _row(mode: str, even: list[float], beside: list[float]) -> dict[str, Any]:
    delays = [100 * (mine / theirs - 1) for mine, theirs in zip(even, beside, strict=True)]
    return {
        "mode": mode,
        "steps_per_s": [round(value, 1) for value in Ratio.of(even)],
        "beside_a_slow_one": [round(value, 1) for value in Ratio.of(beside)],
        "delay_percent": [round(value, 1) + 0.0 for value in Ratio.of(delays)],  # no -0.0
        "rounds": len(delays),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
