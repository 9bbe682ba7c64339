"""What a mode costs in accuracy: ``python benchmarks/quality.py --data_dir=DIR``.

Each task is trained by one process, and with the same seed by several workers in async and in
GEO, with the modes' defaults, in logical time (``logical.py``). Beside them two loops of plain
torch show what can be reached in as many steps (``bare.py``). See docs/accuracy.md.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bare import OPTIMIZERS, BareLoop
from harness import Suite, markdown_table, with_machine, write_json
from logical import Alone, LogicalJob, LogicalWorker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.training.modes.base import GradientError
from paramfleet_shared.system.clock import SystemClock
from quality_tasks import TASKS, Task, TaskMissingError, area_under_curve, load_task

__all__ = ["Case", "Run", "cases_of", "interval", "main", "rows_of", "summary_of"]

MODES: dict[str, dict[str, Any]] = {"async": {}, "geo": {"k_steps": 20}}
"""The keys of each mode's strategy; all others are the defaults."""
CONTROL = "control"
"""One process, its batches in another order: what no mode is to blame for."""
BARE = ("sync", "delayed")
"""Loops of plain torch; the better one of a case is its floor."""
RATES = {"sgd": 0.1, "adagrad": 0.01, "adam": 0.001}
"""torch's own, where it has one."""
WORKERS = (2, 6, 16)
BATCHES = {2: 128, 6: 64, 16: 32}
"""Examples of a worker's step, and of one process' in the same case."""
SEEDS = 5
QUICK_ROWS = 2_000
CHUNK = 4_096

METHOD = """\
DeepFM with rows of 9 values on click logs, census, flights and made-up examples, skip-gram on
pairs of words of real texts; logical workers with the product's own modes and pserver, one tick
a step, so that no figure is a matter of the machine's speed. A Latin square was chosen before
anything was measured: task i with optimizer j takes (2, 6, 16)[(i + j) % 3] workers and
(1, 3)[(i + j // 2) % 2] epochs. loss is the held-out AUC of one process (batches as a worker's)
less that of the mode, with the same seed: its mean over the seeds, and where it lies with 95 %
confidence by Student's t. A run that diverges has an AUC of 0.5. sync and delayed are loops of
plain torch, without the product: N batches a step and an N-th part of the steps, and gradients
that are N - 1 updates old. The one with the better mean is the case's floor, and floor_loss its
mean loss; over_floor is its AUC less that of the mode, as loss is. The control is one process
whose batches come in another order. Runs are made seed by seed until the time is over; seeds
says how many a case got.
quality_*_mean_loss is the mean over all cases and seeds, quality_*_worst_loss the largest,
and those of over_floor likewise."""

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
    """One case with one seed: the AUC of one process, of each mode, control and bare loop."""

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
    batch = BATCHES[case.workers] * task.batch_factor
    workers = []
    for _ in range(num):
        model = task.make_model(task.ids.shape[1], seed=seed)
        optimizer = OPTIMIZERS[case.optimizer](model.parameters(), lr=RATES[case.optimizer])
        workers.append(LogicalWorker(model, optimizer))
    job: Alone | LogicalJob = Alone(workers[0])
    if keys is not None:
        strategy = DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = dict(keys)
        job = LogicalJob(workers, strategy.resolve())
    dice = np.random.default_rng([seed, 2])
    with closing(job):
        try:
            for rows in batches(task, case, seed, batch * num, reordered=reordered):
                for place, worker in enumerate(workers):
                    own = rows[place * batch : (place + 1) * batch]
                    lost: Any = loss_of(task, own, worker.model)  # untyped in torch
                    lost.backward()
                job.deliver()
                for place in dice.permutation(num):
                    workers[place].step(examples=batch)
            job.finish()
        except GradientError:
            return 0.5
        return score(task, workers[0].model.eval())


def train_bare(task: Task, case: Case, loop: str, seed: int) -> float:
    """Return the held-out AUC of a loop of plain torch, ``sync`` or ``delayed``."""
    batch = BATCHES[case.workers] * task.batch_factor
    if loop == "sync":
        batch *= case.workers
    bare = BareLoop(
        task.make_model(task.ids.shape[1], seed=seed),
        case.optimizer,
        rate=RATES[case.optimizer],
        num_ids=int(task.ids.max()) + 1,
        delay=0 if loop == "sync" else case.workers - 1,
    )
    for rows in batches(task, case, seed, batch):
        loss = loss_of(task, rows, bare.logits)
        bare.step(loss / case.workers if task.sums_loss and loop == "sync" else loss)
    bare.finish()
    return score(task, bare.logits)


def batches(
    task: Task, case: Case, seed: int, size: int, *, reordered: bool = False
) -> Iterator[NDArray[np.int64]]:
    """Yield which examples each step has, of all workers together. int64 [size]."""
    dice = np.random.default_rng(seed)
    shuffle = np.random.default_rng([seed, 1])
    for _ in range(case.epochs):
        order = dice.permutation(task.num_train)
        firsts = np.arange(0, task.num_train - size + 1, size)
        for first in shuffle.permutation(firsts) if reordered else firsts:
            yield order[first : first + size]


def loss_of(
    task: Task, rows: NDArray[np.int64], logits: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the loss of a batch, of the examples that ``rows`` says."""
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logits(torch.from_numpy(task.ids[rows])),
        torch.from_numpy(task.labels[rows]),
        reduction="sum" if task.sums_loss else "mean",
    )


def score(task: Task, logits: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the AUC of the held-out examples; 0.5 of a model that has diverged."""
    ids = torch.from_numpy(task.ids[task.num_train :])
    with torch.no_grad():
        parts = [logits(ids[at : at + CHUNK]) for at in range(0, len(ids), CHUNK)]
    return area_under_curve(task.labels[task.num_train :], torch.cat(parts).double().numpy())


def run(case: Case, seed: int, plan: Plan) -> Run:
    """Train one process, each mode and the bare loops with one seed."""
    torch.set_num_threads(1)
    task = load_task(case.task, plan.data_dir)
    if plan.quick:
        task = task._replace(num_train=min(task.num_train, QUICK_ROWS))
    modes = {mode: train(task, case, keys, seed) for mode, keys in plan.modes.items()}
    modes[CONTROL] = train(task, case, None, seed, reordered=True)
    for loop in BARE:
        modes[loop] = train_bare(task, case, loop, seed)
    return Run(case, seed, train(task, case, None, seed), modes)


def floors_of(runs: Sequence[Run]) -> dict[Case, str]:
    """Return which bare loop is each case's floor: the one with the better mean AUC."""
    groups: dict[Case, list[Run]] = {}
    for each in runs:
        groups.setdefault(each.case, []).append(each)
    return {
        case: max((sum(each.modes[loop] for each in own), loop) for loop in BARE)[1]
        for case, own in groups.items()
    }


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a record for each case and mode, the control among them."""
    rows: list[dict[str, Any]] = []
    floors = floors_of(runs)
    for case, group in itertools.groupby(sorted(runs), key=lambda each: each.case):
        own, floor = list(group), floors[case]
        at_floor = [each.alone - each.modes[floor] for each in own]
        for mode in own[0].modes:
            if mode in BARE:
                continue
            losses = [each.alone - each.modes[mode] for each in own]
            over = [each.modes[floor] - each.modes[mode] for each in own]
            rows.append(
                {
                    **case._asdict(),
                    "mode": mode,
                    "loss": [float(np.mean(losses)), *interval(losses)],
                    "worst": max(losses),
                    "over_floor": [float(np.mean(over)), *interval(over)],
                    "floor": floor,
                    "floor_loss": float(np.mean(at_floor)),
                    "alone_auc": float(np.mean([each.alone for each in own])),
                    "seeds": len(losses),
                }
            )
    return rows


def summary_of(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return the headlines: each mode's mean and worst loss, beside one process and floor."""
    summary: dict[str, float | None] = {}
    floors = floors_of(runs)
    for mode in (*MODES, CONTROL, *BARE):
        own = [each for each in runs if mode in each.modes]
        losses = [each.alone - each.modes[mode] for each in own]
        over = [each.modes[floors[each.case]] - each.modes[mode] for each in own]
        for kind, found in (("loss", losses), ("over_floor", over)):
            mean = float(np.mean(found)) if found else None
            summary[f"quality_{mode}_mean_{kind}"] = mean
            summary[f"quality_{mode}_worst_{kind}"] = max(found, default=None)
    return summary


def measure(
    plan: Plan,
    tasks: Sequence[str],
    *,
    seeds: int,
    minutes: float = math.inf,
    known: Sequence[Run] = (),
) -> Suite:
    """Run every case with every seed, two at a time; few begin when the time is over.

    Args:
        plan: What is the same for all cases.
        tasks: Which.
        seeds: How many.
        minutes: Of all.
        known: Runs of before, which aren't made again.
    """
    clock = SystemClock()
    stop = clock.monotonic() + 60 * minutes
    jobs = list(itertools.product(range(seeds), cases_of(list(TASKS))))
    made = {(each.seed, each.case) for each in known}
    jobs = [job for job in jobs if job[1].task in tasks and job not in made]
    runs = list(known)
    missing: dict[str, str] = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, case, seed, plan) for seed, case in jobs]
        for future, (_, case) in zip(futures, jobs, strict=True):
            if clock.monotonic() > stop:
                for each in futures:  # one that waits for a process would begin meanwhile
                    each.cancel()
            if future.cancelled():
                continue
            try:
                runs.append(future.result())
            except TaskMissingError as error:
                missing[case.task] = str(error)
                continue
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return {
        "benchmark": "quality",
        "rows": rows_of(runs),
        "summary": summary_of(runs),
        "method": METHOD,
        "details": {
            "missing": missing,
            "known": len(known),
            "runs": [list(each) for each in runs],
        },
    }


def read_runs(log: Path) -> list[Run]:
    """Return the runs that a benchmark printed before it was stopped, of a log."""
    lines = log.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("[[")]
    return [Run(Case(*case), *rest) for case, *rest in found]


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
    parser.add_argument("--known", type=Path, help="what it printed before, to go on from")
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    tasks = options.tasks.split(",")
    modes = {mode: MODES[mode] for mode in options.modes.split(",")}
    if "geo" in modes:
        modes["geo"] = {**modes["geo"], **options.keys}
    plan = Plan(options.data_dir, modes, options.quick)
    known = read_runs(options.known) if options.known is not None else []
    result = with_machine(
        lambda: measure(plan, tasks, seeds=seeds, minutes=options.minutes, known=known)
    )
    for line in markdown_table(result["rows"]):
        print(line)
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(result["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
