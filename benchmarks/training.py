"""Samples a second in each mode beside one process: ``python benchmarks/training.py``.

Two workers and one pserver, one torch thread each, train the shape of Fleet's rank/dnn and
the example's wide and deep model; a single process with one torch thread does the same
without servers. See README.md beside this file.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conditions import MIN_ROUNDS
from harness import Suite, run_script, suite_of
from jobs import JobShape, run_jobs, training_jobs, turn_of
from rounds import Rounds, Turns

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["measure", "run_training"]

BUDGET_S = 100.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

MODES = ("single", "sync", "async", "geo")
METHOD = """\
Total samples/s of 2 workers + 1 pserver over samples/s of one process, one torch thread
each, workers on a core each: all jobs stay warm, and their windows are taken in turns.
A job's window begins at a barrier of its workers, ends for a worker when what it sent is
applied, and counts the samples of all workers until the first of them is through; in GEO
(k_steps 100) each window is a period, with its exchange in the middle, and windows of dnn in
other modes are half as long. Ratios are of windows of one round; `_cpu` is the processor time a
sample of the single process over that of all the job's processes but the registry.
dnn: 26 slots of rows of 9, 13 numbers, MLP 512-256-128-32, batch 512, Adam, Zipf distributed
ids with a planted signal. flights: the example's model and data, batch 512, Adagrad. The AUC
is of unseen examples after the last window."""

_WORK = {
    "dnn": ("ctr", 50, ()),
    "flights": ("wide_deep", 100, ()),
}
"""By name: the workload, steps of a window (GEO makes whole periods of them), and options."""

_SHARES = {"dnn": 0.75, "flights": 0.25}
"""Of the time."""

_TINY = {
    "dnn": (
        "ctr",
        8,
        ("--k_steps=4", "--ids=2600", "--batch_size=32", "--batches=8", "--held_out=256"),
    ),
}


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure every workload in every mode for about ``budget_s`` seconds."""
    work = _TINY if budget_s < QUICK_S else _WORK
    rows: list[dict[str, Any]] = []
    turns: dict[str, Turns] = {}
    headlines: dict[str, Headline | None] = {}
    for name in work:
        share_s = budget_s * (1.0 if work is _TINY else _SHARES[name])
        rounds, quality = run_jobs(_measure(name, quick=work is _TINY, budget_s=share_s))
        rows += [_row(name, mode, rounds, quality[mode]) for mode in MODES]
        turns[name] = rounds.turns
        if name == "dnn":
            for mode in ("async", "geo"):
                headlines[f"{mode}_train_vs_single"] = rounds.headline(mode, "single")
                headlines[f"{mode}_train_vs_single_cpu"] = rounds.cpu_headline(mode, "single")
    return suite_of("training", rows=rows, headlines=headlines, method=METHOD, turns=turns)


def run_training(
    shape: JobShape, *, warm_steps: int = 120, seconds: float = 3.0, windows: int = 1
) -> dict[str, float]:
    """Run one job from its start to its end.

    Returns:
        The figures of its best window, and its quality after the last one.

    Raises:
        ChildFailedError: if a process fails.
    """
    return run_jobs(_run_one(shape, warm_steps, seconds, windows))


async def _run_one(
    shape: JobShape, warm_steps: int, seconds: float, windows: int
) -> dict[str, float]:
    async with training_jobs([shape], warm_steps=warm_steps) as (job,):
        found = [await job.window(seconds=seconds) for _ in range(windows)]
        quality = await job.quality()
    return max(found, key=lambda each: each["samples_per_s"]) | quality


async def _measure(
    name: str, *, quick: bool, budget_s: float
) -> tuple[Rounds, dict[str, dict[str, float]]]:
    """Return the figures of one workload, and its qualities by mode."""
    now = asyncio.get_running_loop().time
    begun = now()
    script, steps, options = (_TINY if quick else _WORK)[name]
    shapes = [JobShape(script=script, mode=mode, arguments=options) for mode in MODES]
    async with training_jobs(shapes, warm_steps=steps) as running:
        jobs = dict(zip(MODES, running, strict=True))
        left_s = budget_s - (now() - begun)
        rounds = Rounds(
            MODES, budget_s=left_s, max_rounds=1 if quick else 1000, least=MIN_ROUNDS
        )
        for mode in rounds.turns:
            rounds.figures[mode].append(turn_of(await jobs[mode].window(steps=steps)))
        quality = {mode: await job.quality() for mode, job in jobs.items()}
    return rounds, quality


def _row(name: str, mode: str, rounds: Rounds, quality: Mapping[str, float]) -> dict[str, Any]:
    return {
        "work": name,
        "mode": mode,
        "workers": 1 if mode == "single" else 2,
        "samples_per_s": [round(value) for value in rounds.figure(mode)],
        "vs_single": rounds.ratio(mode, "single"),
        "cpu_us_per_sample": 1e6 * rounds.cpu_s(mode),
        "vs_single_cpu": rounds.cpu_ratio(mode, "single"),
        "rounds": rounds.turns.num_counted,
        "auc": round(quality["auc"], 4),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
