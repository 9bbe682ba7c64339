"""What a mode costs in accuracy: ``python benchmarks/quality.py --data_dir=DIR``.

Each task is trained by one process, and with the same seed by several workers in async and in
GEO, with the modes' defaults, in logical time (``logical.py``). See docs/accuracy.md.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from harness import Suite, markdown_table, with_machine, write_json
from logical import Alone, LogicalJob, LogicalWorker
from paramfleet.modes.base import GradientError
from paramfleet.strategy import DistributedStrategy
from paramfleet_shared.clock import SystemClock
from quality_tasks import TASKS, DeepFM, Task, TaskMissingError, area_under_curve

__all__ = ["Case", "cases_of", "interval", "main", "rows_of", "summary_of"]

MODES: dict[str, dict[str, Any]] = {"async": {}, "geo": {"k_steps": 20}}
"""The keys of each mode's strategy; all others are the defaults."""
CONTROL = "control"
"""One process, its batches in another order: what no mode is to blame for."""
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
}
"""With torch's own rates, where it has one."""
WORKERS = (2, 6, 16)
BATCHES = {2: 128, 6: 64, 16: 32}
"""Examples of a worker's step, and of one process' in the same case."""
SEEDS = 5
QUICK_ROWS = 2_000
CHUNK = 4_096

METHOD = """\
DeepFM with rows of 9 values on click logs, census, flights and made-up examples; logical
workers with the product's own modes and pserver, one tick a step, so that no figure is a matter
of the machine's speed. A Latin square was chosen before anything was measured: task i with
optimizer j takes (2, 6, 16)[(i + j) % 3] workers and (1, 3)[(i + j // 2) % 2] epochs. loss is
the held-out AUC of one process (batches as a worker's) less that of the mode, with the same
seed: its mean over the seeds, and where it lies with 95 % confidence by Student's t. A run that
diverges has an AUC of 0.5. The control is one process whose batches come in another order.
Runs are made seed by seed until the time is over; seeds says how many a case got.
quality_*_mean_loss is the mean over all cases and seeds, quality_*_worst_loss the largest."""

_T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for 95 %, both sides, by the number of values."""


class Case(NamedTuple):
    """What is compared, over all seeds."""

    task: str
    optimizer: str
    workers: int
    epochs: int


class Plan(NamedTuple):
    """What is the same for all cases."""

    data_dir: Path
    modes: Mapping[str, Mapping[str, Any]]
    """The keys of the strategy, by mode."""
    quick: bool


class Run(NamedTuple):
    """One case with one seed: the AUC of one process, and of each mode and the control."""

    case: Case
    seed: int
    alone: float
    modes: dict[str, float]


def cases_of(tasks: Sequence[str]) -> list[Case]:
    """Return the fraction of the grid that is measured."""
    return [
        Case(task, optimizer, WORKERS[(i + j) % 3], (1, 3)[(i + j // 2) % 2])
        for i, task in enumerate(tasks)
        for j, optimizer in enumerate(OPTIMIZERS)
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return between what the mean lies with 95 % confidence; of one value, itself."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean
    reach = _T_95.get(len(values), 2.0) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean - reach, mean + reach


def train(
    task: Task,
    case: Case,
    keys: Mapping[str, Any] | None,
    seed: int,
    *,
    reordered: bool = False,
) -> float:
    """Return the held-out AUC of a job, or of one process where ``keys`` is None.

    With ``reordered`` the batches of each epoch are the same, and come in another order.
    """
    num = 1 if keys is None else case.workers
    workers = []
    for _ in range(num):
        model = DeepFM(task.ids.shape[1], seed=seed)
        workers.append(LogicalWorker(model, OPTIMIZERS[case.optimizer](model.parameters())))
    job: Alone | LogicalJob = Alone(workers[0])
    if keys is not None:
        strategy = DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = dict(keys)
        job = LogicalJob(workers, strategy.resolve())
    with closing(job):
        try:
            train_all(job, task, case, seed, reordered=reordered)
        except GradientError:
            return 0.5
        return area_under_curve(task.labels[task.num_train :], scores(workers[0], task))


def train_all(
    job: Alone | LogicalJob, task: Task, case: Case, seed: int, *, reordered: bool
) -> None:
    """Take every step of a job.

    Raises:
        GradientError: if it diverges.
    """
    num, batch = len(job.workers), BATCHES[case.workers]
    dice = np.random.default_rng(seed)
    shuffle = np.random.default_rng([seed, 1])
    ids, labels = torch.from_numpy(task.ids), torch.from_numpy(task.labels)
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(case.epochs):
        order = dice.permutation(task.num_train)
        firsts = np.arange(0, task.num_train - batch * num + 1, batch * num)
        for first in shuffle.permutation(firsts) if reordered else firsts:
            for place, worker in enumerate(job.workers):
                rows = order[first + place * batch : first + (place + 1) * batch]
                lost: Any = loss(worker.model(ids[rows]), labels[rows])  # untyped in torch
                lost.backward()
            job.deliver()
            for place in dice.permutation(num):
                job.workers[place].step(examples=batch)
    job.finish()


def scores(worker: LogicalWorker, task: Task) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logits of the held-out examples."""
    model, ids = worker.model.eval(), torch.from_numpy(task.ids)
    with torch.no_grad():
        parts = [
            model(ids[start : start + CHUNK])
            for start in range(task.num_train, len(task.ids), CHUNK)
        ]
    return torch.cat(parts).double().numpy()


def run(case: Case, seed: int, plan: Plan) -> Run:
    """Train one process and each mode with one seed."""
    torch.set_num_threads(1)
    task = TASKS[case.task](plan.data_dir)
    if plan.quick:
        task = task._replace(num_train=min(task.num_train, QUICK_ROWS))
    modes = {mode: train(task, case, keys, seed) for mode, keys in plan.modes.items()}
    modes[CONTROL] = train(task, case, None, seed, reordered=True)
    return Run(case, seed, train(task, case, None, seed), modes)


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a record for each case and mode."""
    rows = []
    for case, group in itertools.groupby(sorted(runs), key=lambda each: each.case):
        own = list(group)
        for mode in own[0].modes:
            losses = [each.alone - each.modes[mode] for each in own]
            low, high = interval(losses)
            rows.append(
                {
                    **case._asdict(),
                    "mode": mode,
                    "loss": [float(np.mean(losses)), low, high],
                    "worst": max(losses),
                    "alone_auc": float(np.mean([each.alone for each in own])),
                    "seeds": len(losses),
                }
            )
    return rows


def summary_of(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return the headlines: each mode's mean and worst loss."""
    summary: dict[str, float | None] = {}
    for mode in (*MODES, CONTROL):
        losses = [each.alone - each.modes[mode] for each in runs if mode in each.modes]
        summary[f"quality_{mode}_mean_loss"] = float(np.mean(losses)) if losses else None
        summary[f"quality_{mode}_worst_loss"] = max(losses, default=None)
    return summary


def measure(
    plan: Plan, tasks: Sequence[str], *, seeds: int, minutes: float = math.inf
) -> Suite:
    """Run every case with every seed, two at a time; none begins when the time is over."""
    clock = SystemClock()
    stop = clock.monotonic() + 60 * minutes
    jobs = list(itertools.product(range(seeds), cases_of(list(TASKS))))
    jobs = [(seed, case) for seed, case in jobs if case.task in tasks]
    runs: list[Run] = []
    missing: dict[str, str] = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, case, seed, plan) for seed, case in jobs]
        for future, (_, case) in zip(futures, jobs, strict=True):
            if clock.monotonic() > stop and future.cancel():
                continue
            try:
                runs.append(future.result())
            except TaskMissingError as error:
                missing[case.task] = str(error)
                continue
            print(runs[-1], file=sys.stderr, flush=True)
    return {
        "benchmark": "quality",
        "rows": rows_of(runs),
        "summary": summary_of(runs),
        "method": METHOD,
        "details": {"missing": missing, "runs": [list(each) for each in runs]},
    }


def main() -> int:
    """Be the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data_dir", type=Path, required=True, help="of the medium data")
    parser.add_argument("--tasks", default=",".join(TASKS), help="which, with commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after")
    parser.add_argument("--modes", default=",".join(MODES), help="which, with commas")
    parser.add_argument("--keys", type=json.loads, default={}, help="more of geo's, as JSON")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    tasks = options.tasks.split(",")
    modes = {mode: MODES[mode] for mode in options.modes.split(",")}
    if "geo" in modes:
        modes["geo"] = {**modes["geo"], **options.keys}
    plan = Plan(options.data_dir, modes, options.quick)
    result = with_machine(lambda: measure(plan, tasks, seeds=seeds, minutes=options.minutes))
    for line in markdown_table(result["rows"]):
        print(line)
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(result["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
