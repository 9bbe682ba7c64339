"""What a training costs that is kept on a disk: ``python benchmarks/durability.py``.

Two workers and two pservers train in async mode, and keep nothing, keep their training without
a wait for the disk, or with one. See README.md beside this file.
"""

import asyncio
import itertools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from conditions import MIN_ROUNDS
from harness import Suite, run_script, suite_of
from jobs import JobShape, Saved, TrainingJob, run_jobs, training_jobs, turn_of
from paramfleet_coordinator.config import CoordinatorSettings
from rounds import Ratio, Rounds

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["Step", "measure", "steps_of"]

BUDGET_S = 180.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

SERVERS = 2

KEPT = ("none", "async", "sync")
"""The settings of ``durability``."""

REPLICA = "replica"
"""The case in which each pserver follows the other one, and nothing is on a disk."""

HAS_REPLICAS = any(field.name == "replicas" for field in fields(CoordinatorSettings))

CASES = (*KEPT, REPLICA) if HAS_REPLICAS else KEPT

METHOD = """\
Total samples/s of 2 workers + 2 pservers, one torch thread each, workers on a core each, in
async mode, by the pservers' durability; all jobs stay warm, their windows are taken in turns;
ratios are of windows of one round: the cost is a durable job's samples/s over those of the one
that keeps nothing, 1 for no cost. Of replica each pserver follows the other one, and nothing is
on a disk. dnn of training.py: 26 slots of rows of 9, 13 numbers, MLP
512-256-128-32, batch 512, Adam. After a window of a durable job its snapshots have time to end
before the next case's window, and their processor time counts for `_cpu`. log_mb_per_s: what
both pservers wrote to their logs, by the kernel's count of bytes written less those of
snapshots, per second of the window. A step's length is from one worker's step's end to its next
one's; longest_step_ms is the longest of a window, in_snapshot_ms the longest of those during
which a pserver took a snapshot, and else_ms of the others. The disk is that of the folder for
temporary files (TMPDIR)."""

_STEPS = 150
"""Of a window: it has several snapshots."""
_WARM_STEPS = 150
_TINY_STEPS = 8
_TINY = ("--ids=2600", "--batch_size=32", "--batches=8", "--held_out=256", "--widths=16")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a worker; times are in seconds since 1970."""

    began: float
    ended: float

    @property
    def ms(self) -> float:
        """Return how long it took."""
        return 1e3 * (self.ended - self.began)

    def meets(self, snapshots: Iterable[Saved]) -> bool:
        """Return whether a snapshot was taken during a part of it."""
        return any(s.began < self.ended and self.began < s.ended for s in snapshots)


@dataclass(slots=True)
class _Found:
    """What the windows of a case have shown beside their rates, a figure of each."""

    log_mb_per_s: list[float] = field(default_factory=list)
    snapshot_mb: list[float] = field(default_factory=list)
    snapshots: list[float] = field(default_factory=list)
    snapshot_s: list[float | None] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    longest_step_ms: list[float] = field(default_factory=list)
    in_snapshot_ms: list[float | None] = field(default_factory=list)
    else_ms: list[float | None] = field(default_factory=list)

    def add(self, window: Mapping[str, Any], taken: Sequence[Saved], num_bytes: int) -> None:
        """Take a window's figures.

        Args:
            window: Of ``TrainingJob.window``.
            taken: The snapshots that ended since it began.
            num_bytes: Of a snapshot of all pservers.
        """
        steps = steps_of(window)
        inside = [step.ms for step in steps if step.meets(taken)]
        outside = [step.ms for step in steps if not step.meets(taken)]
        of_snapshots = len(taken) * num_bytes / SERVERS
        logged = max(0.0, window.get("disk_bytes", 0) - of_snapshots)
        self.log_mb_per_s.append(logged / 1e6 / window["seconds"])
        self.snapshot_mb.append(num_bytes / 1e6)
        self.snapshots.append(len(taken))
        lengths = [each.ended - each.began for each in taken]
        self.snapshot_s.append(max(lengths, default=None))
        self.step_ms.append(statistics.median(step.ms for step in steps))
        self.longest_step_ms.append(max(step.ms for step in steps))
        self.in_snapshot_ms.append(max(inside, default=None))
        self.else_ms.append(max(outside, default=None))


def steps_of(window: Mapping[str, Any]) -> list[Step]:
    """Return the steps of all workers of a window."""
    began = window["began_at"]
    return [
        Step(began + before, began + after)
        for ends in window["ends"]
        for before, after in itertools.pairwise((0.0, *ends))
    ]


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure every case for about ``budget_s`` seconds."""
    rounds, found = run_jobs(_measure(quick=budget_s < QUICK_S, budget_s=budget_s))
    headlines: dict[str, Headline | None] = {}
    for case in CASES[1:]:
        name = f"{case}_cost" if case == REPLICA else f"durability_{case}_cost"
        headlines[name] = rounds.headline(case, "none")
        headlines[f"{name}_cpu"] = rounds.cpu_headline(case, "none")
    return suite_of(
        "durability",
        rows=[_row(case, rounds) for case in CASES]
        + [_steps_row(case, rounds, found[case]) for case in CASES],
        headlines=headlines,
        method=METHOD,
        turns={"dnn": rounds.turns},
    )


async def _measure(*, quick: bool, budget_s: float) -> tuple[Rounds, dict[str, _Found]]:
    """Return the rates, and what else the windows have shown."""
    now = asyncio.get_running_loop().time
    begun, steps = now(), _TINY_STEPS if quick else _STEPS
    shapes = [
        JobShape(
            script="ctr",
            mode="async",
            arguments=_TINY if quick else (),
            servers=SERVERS,
            durability="none" if case == REPLICA else case,
            replicas=int(case == REPLICA),
        )
        for case in CASES
    ]
    found = {case: _Found() for case in CASES}
    warm_steps = steps if quick else _WARM_STEPS
    async with training_jobs(shapes, warm_steps=warm_steps) as running:
        jobs = dict(zip(CASES, running, strict=True))
        left_s = budget_s - (now() - begun)
        rounds = Rounds(
            CASES, budget_s=left_s, max_rounds=1 if quick else 1000, least=MIN_ROUNDS
        )
        for case in rounds.turns:
            rounds.figures[case].append(turn_of(await _window(jobs[case], steps, found[case])))
    return rounds, found


async def _window(job: TrainingJob, steps: int, found: _Found) -> dict[str, Any]:
    before = len(job.snapshots())
    window: dict[str, Any] = await job.window(steps=steps)
    found.add(window, job.snapshots()[before:], job.snapshot_bytes)
    return window


def _row(case: str, rounds: Rounds) -> dict[str, Any]:
    return {
        "durability": case,
        "samples_per_s": [round(value) for value in rounds.figure(case)],
        "vs_none": rounds.ratio(case, "none"),
        "cpu_us_per_sample": 1e6 * rounds.cpu_s(case),
        "vs_none_cpu": rounds.cpu_ratio(case, "none"),
        "rounds": rounds.turns.num_counted,
    }


def _steps_row(case: str, rounds: Rounds, found: _Found) -> dict[str, Any]:
    def spread(values: Sequence[float | None]) -> Ratio | None:
        known = [value for value in rounds.turns.kept(values) if value is not None]
        return Ratio.of(known) if known else None

    return {
        "durability": case,
        "log_mb_per_s": spread(found.log_mb_per_s),
        "snapshots": spread(found.snapshots),
        "snapshot_mb": spread(found.snapshot_mb),
        "longest_snapshot_s": spread(found.snapshot_s),
        "step_ms": spread(found.step_ms),
        "longest_step_ms": spread(found.longest_step_ms),
        "in_snapshot_ms": spread(found.in_snapshot_ms),
        "else_ms": spread(found.else_ms),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
