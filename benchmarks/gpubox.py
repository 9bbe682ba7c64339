"""Samples a second of passes with rows on a device: ``python benchmarks/gpubox.py``.

One worker trains in gpubox mode, with one pserver and with two; beside it one trains in sync
with as many, and one process does the same without servers. All compute on the GPU where torch
finds one, else on a processor. See README.md beside this file.
"""

import asyncio
import statistics
import sys
from typing import TYPE_CHECKING, Any

import torch

from harness import Suite, run_script, suite_of
from jobs import JobShape, run_jobs, training_jobs, turn_of
from rounds import Rounds

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["measure"]

BUDGET_S = 100.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

METHOD = """\
Samples/s of 1 worker, one torch thread, on a core of its own; all jobs stay warm, and their
windows are taken in turns; ratios are of windows of one round, `_cpu` of processor time of all
processes. The model of `training.py`'s dnn: 26 slots of rows of 9, 13 numbers, MLP
512-256-128-32, batch 512, Adam, Zipf distributed ids. A window of gpubox is a call of
fleet.device_pass over its batches: their ids are found, rows come, are trained, and go back,
all within it. `split` has a device_budget that makes several passes of a window; hit_share is
the part of the rows of its later passes that was there from the one before. begin_s, train_s
and end_s are a window's: what the training waited for rows, trained, and wrote back."""

_CASES: dict[str, tuple[str, int, bool]] = {
    "single": ("single", 0, False),
    "sync 1": ("sync", 1, False),
    "sync 2": ("sync", 2, False),
    "gpubox 1": ("gpubox", 1, False),
    "gpubox 2": ("gpubox", 2, False),
    "split 2": ("gpubox", 2, True),
}
"""By name: the mode, how many pservers, and whether the window is split."""

_SPLIT_BYTES = 12 << 20
_STEPS = 100
_TINY_STEPS = 8
_TINY = ("--ids=2600", "--batch_size=32", "--batches=8", "--held_out=256", "--widths=16")
_TINY_SPLIT_BYTES = 1 << 16

_PARTS = ("begin_s", "train_s", "end_s")


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure every case for about ``budget_s`` seconds."""
    rounds, windows = run_jobs(_measure(quick=budget_s < QUICK_S, budget_s=budget_s))
    headlines: dict[str, Headline | None] = {}
    for case in ("gpubox 1", "gpubox 2", "split 2"):
        name = case.replace(" ", "_")
        headlines[f"{name}_vs_single"] = rounds.headline(case, "single")
        sync = f"sync {case[-1]}"
        headlines[f"{name}_vs_sync"] = rounds.headline(case, sync)
        headlines[f"{name}_vs_sync_cpu"] = rounds.cpu_headline(case, sync)
    return suite_of(
        "gpubox",
        rows=[_row(case, rounds, windows[case]) for case in _CASES],
        headlines=headlines,
        method=METHOD,
        turns={"dnn": rounds.turns},
    )


async def _measure(
    *, quick: bool, budget_s: float
) -> tuple[Rounds, dict[str, list[dict[str, float]]]]:
    """Return the rounds, and the figures of each case's windows."""
    now = asyncio.get_running_loop().time
    begun, steps = now(), _TINY_STEPS if quick else _STEPS
    device = f"--device={'cuda' if torch.cuda.is_available() else 'cpu'}"
    split = f"--budget={_TINY_SPLIT_BYTES if quick else _SPLIT_BYTES}"
    shapes = [
        JobShape(
            script="ctr",
            mode=mode,
            arguments=(device, *(_TINY if quick else ()), *([split] if is_split else [])),
            workers=1,
            servers=servers,
        )
        for mode, servers, is_split in _CASES.values()
    ]
    found: dict[str, list[dict[str, float]]] = {case: [] for case in _CASES}
    async with training_jobs(shapes, warm_steps=steps) as running:
        jobs = dict(zip(_CASES, running, strict=True))
        left_s = budget_s - (now() - begun)
        rounds = Rounds(list(_CASES), budget_s=left_s, max_rounds=1 if quick else 1000)
        for case in rounds.turns:
            window = await jobs[case].window(steps=steps)
            rounds.figures[case].append(turn_of(window))
            found[case].append(window)
    return rounds, found


def _row(case: str, rounds: Rounds, windows: list[dict[str, float]]) -> dict[str, Any]:
    kept = rounds.turns.kept(windows)

    def median(name: str) -> float | None:
        figures = [window[name] for window in kept if name in window]
        return statistics.median(figures) if figures else None

    sync = f"sync {case[-1]}" if case != "single" else "sync 1"
    return {
        "case": case,
        "samples_per_s": [round(value) for value in rounds.figure(case)],
        "vs_single": rounds.ratio(case, "single"),
        "vs_sync": rounds.ratio(case, sync),
        "cpu_us_per_sample": 1e6 * rounds.cpu_s(case),
        **{name: median(f"pass_{name}") for name in _PARTS},
        "passes": median("passes"),
        "hit_share": median("hit_share"),
        "device": _device_name(),
        "rounds": rounds.turns.num_counted,
    }


def _device_name() -> str:
    """Return what all cases compute on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "processor"


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
